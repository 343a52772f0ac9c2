"""A config to compose, as data, and what composing it gave: for the golden files of `tests/golden/`.

A case is a list of words, or a mapping with `words`, `files` (texts by path; `r.yaml`, if there, is the recipe),
`recipe`, `config_dirs`, `config_name`, `env` and `world_size`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.cli.config_arguments import lines_without_effect
from covey.config import Composed, compose, split
from covey.config.compose.build import as_dict, walk
from covey.config.keys import GROUPS
from covey.errors import ConfigError

Case = Mapping[str, Any]
RECIPE = "r.yaml"


def read_case(written: Any) -> Case:
    """A case as it stands in a file: a text is a command line, a list its words."""
    if isinstance(written, str):
        written = shlex.split(written)
    return written if isinstance(written, Mapping) else {"words": written}


def name_of(case: Case) -> str:
    """The case in one line, as its name."""
    files = [f"{path}: {text!r}" for path, text in case.get("files", {}).items()]
    more = [
        f"{name}={case[name]}" for name in ("recipe", "config_dirs", "config_name", "env", "world_size") if name in case
    ]
    name = " ".join([shlex.join(case.get("words", [])), *more, *files]).strip()
    return name if len(name) <= 300 else f"{name[:200]}… ({len(name)} characters)"


@contextmanager
def in_place(case: Case, folder: Path) -> Iterator[None]:
    """Context manager: the case's files in an empty folder, and its environment variables."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in case.get("files", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    before, here = dict(os.environ), Path.cwd()
    os.environ.update(case.get("env", {}))
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


def compose_case(case: Case) -> Composed:
    """Compose a case whose files lie in the current folder."""
    words = split(case.get("words", []))
    recipe = case.get("recipe") or words.recipe or (RECIPE if RECIPE in case.get("files", {}) else None)
    return compose(
        *(words.overrides, recipe, case.get("config_dirs", [])),
        config_name=case.get("config_name"),
        world_size=case.get("world_size"),
    )


def _by_place(origins: Mapping[str, str]) -> dict[str, Any]:
    """The lines of keys by their file; what else sets keys, with these."""
    found: dict[str, Any] = {}
    for key, place in origins.items():
        file, _, line = place.rpartition(", line ")
        if file:
            found.setdefault(file, {})[key] = int(line)
        else:
            found.setdefault(place, []).append(key)
    return found


def facts(composed: Composed) -> dict[str, Any]:
    """What is recorded of a composed config: its values, options and tree of groups, notes and origins."""
    return {
        "values": {key: value for key, value in walk(as_dict(composed.config)) if key not in GROUPS},
        "options": {choice.group: choice.option for choice in composed.choices},
        "notes": [*composed.notes, *lines_without_effect(composed)],
        "origins": _by_place(composed.origins),
        "tree": list(composed.defaults_tree),
    }


def difference(found: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from other facts: values and options, those that are gone, new lines of the tree, and all notes and
    origins."""
    changes: dict[str, Any] = {}
    for part in ("values", "options"):
        changed = {
            k: v for k, v in found[part].items() if k not in base[part] or json.dumps(base[part][k]) != json.dumps(v)
        }
        gone = sorted(base[part].keys() - found[part].keys())
        changes |= {part: changed, f"{part} gone": gone}
    changes["tree"] = [line for line in found["tree"] if line not in base["tree"]]
    return {
        part: data for part, data in (changes | {part: found[part] for part in ("notes", "origins")}).items() if data
    }


def told(make: Callable[[], Composed], base: Mapping[str, Any]) -> dict[str, Any]:
    """How a config differs from other facts, or the error that there is instead."""
    try:
        return difference(facts(make()), base)
    except ConfigError as error:
        return {"error": str(error)}


@contextmanager
def wandb_there(folder: Path) -> Iterator[None]:
    """Context manager: W&B counts as installed; a preset leaves it out where it is missing."""
    (folder / "wandb").mkdir(parents=True)
    (folder / "wandb" / "__init__.py").touch()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def only_once(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Cases by their names, of which no two are another case."""
    cases: dict[str, Any] = {}
    for name, data in found:
        assert cases.setdefault(name, data) == data, f"two cases are called {name}"
    return cases


def reached(error: BaseException) -> Iterator[tuple[str, int]]:
    """The file and line at which each exception behind an error was raised, the error's own first."""
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and all(following is not one for one in seen):
        seen.append(following)
        place = following.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        if place is not None:
            yield place.tb_frame.f_code.co_filename, place.tb_lineno
        following = following.__cause__ or following.__context__
