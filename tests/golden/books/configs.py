"""Resolved configs: values and options as differences from the defaults, and all notes and origins.

Recipes and groups are taken from where they lie, and `configs.yaml` lists the rest; `config_commands.py` has more.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from commands import make_workspace
from config_cases import compose_case, facts, in_place, name_of, only_once, read_case, told, wandb_there
from covey.config import compose, to_yaml

ROOT = Path(__file__).resolve().parents[3]
CONF = ROOT / "src" / "covey" / "config" / "conf"
LISTED = ROOT / "tests" / "golden" / "configs.yaml"


def cases(folder: Path) -> dict[str, Any]:
    with wandb_there(folder / "site"):
        return only_once(recorded(folder / "work"))


def recorded(work: Path) -> Iterator[tuple[str, Any]]:
    base = facts(compose())
    yield "", base
    listed = yaml.safe_load(LISTED.read_text(encoding="utf-8"))
    with in_place({}, work):
        make_workspace(ROOT, work)
        for path in sorted(ROOT.glob("recipes/*/*/*.yaml")):
            recipe = path.relative_to(ROOT).as_posix()
            yield recipe, told(partial(compose, recipe=recipe, world_size=8), base)
        for path in sorted(CONF.glob("*/*.yaml")):
            word = f"{path.parent.name}={path.stem}"
            word = word if path.parent.name in base["options"] else f"+{word}"
            yield word, told(partial(compose, [word]), base)
        for path in sorted((ROOT / "tests" / "foreign").glob("*.yaml")):
            Path(path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            yield path.stem, told(partial(compose, recipe=path.name), base)
    for case in map(read_case, listed["cases"]):
        with in_place(case, work):
            yield name_of(case), told(partial(compose_case, case), base)
    for line in listed["again"]:  # as a run writes its config and reads it again
        composed = compose_case(read_case(line))
        text = to_yaml(composed.config)
        yield f"{line} (written)", text.splitlines()
        for words in ([], ["training.learning_rate=1e-3", "evaluation=greedy", "dataset=gsm8k"]):
            case = {"words": words, "files": {"r.yaml": text}}
            with in_place(case, work):
                again = told(partial(compose_case, case), facts(composed))
            if line != listed["again"][0]:  # every key's line of the file
                again.pop("origins", None)
            yield f"{line} (again) {shlex.join(words)}".strip(), again
