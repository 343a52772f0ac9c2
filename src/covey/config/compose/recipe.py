"""Reading config files: YAML with a defaults list of groups and keys to set, nested or dotted; and those of a run."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from covey.advice import command
from covey.config.aliases.resolve import leaves
from covey.config.groups.dataset import DATA_FILES
from covey.config.keys import Written, check_length, did_you_mean
from covey.config.values import show
from covey.config.yaml import check_yaml, yaml_problem
from covey.errors import ConfigError

_WRAPPERS = ("maxent", "baseline", "script")
_BASES = tuple(f"{group}.recipe" for group in _WRAPPERS)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a recipe, a primary config, or an option of a config group."""

    path: Path
    text: str
    package: str | None
    """The package that its header names; None without one."""
    defaults: list[Any] | None
    """The entries of its defaults list as Hydra reads them; None without one."""
    content: Mapping[str, Any]
    """Everything else, nested; interpolations not yet resolved."""

    @property
    def complete(self) -> bool:
        """Whether it has `defaults: []`: a complete config, without Covey's defaults."""
        return self.defaults == []

    def written(self, package: str = "", by: str = "recipe") -> list[Written]:
        """Every key it sets where it lies in this package, aliases included, in order. Raises a `ConfigError` for a
        name that is too long to be one, or that is set twice, dotted and nested."""
        prefix = f"{package}." if package else ""
        found = list(
            leaves(self.content, prefix, by=by, place=lambda key: _at(self.path, self.text, key.removeprefix(prefix)))
        )
        for name, times in Counter(item.name for item in found).items():
            check_length(name)
            if times > 1:
                raise ConfigError(f"{self.path}: {name} is set twice in this file; keep one of them.")
        return [item for item in found if item.name not in _BASES]

    def base(self) -> Path | None:
        """The recipe that it builds on, as the MaxEnt-GRPO project's do: relative to the working directory or to a
        folder above it."""
        inner = ((group, self.content.get(group)) for group in _WRAPPERS)
        nested = {f"{group}.recipe": values.get("recipe") for group, values in inner if isinstance(values, Mapping)}
        found = {**{key: self.content.get(key) for key in _BASES}, **nested}
        key, value = next(((key, value) for key, value in found.items() if value), ("", None))
        if value is None:
            return None
        name = Path(str(value)).expanduser()
        folders = [Path.cwd(), *self.path.absolute().parents]
        for folder in folders:
            if (folder / name).is_file() and not (folder / name).samefile(self.path):
                return folder / name
        raise ConfigError(
            f"{_at(self.path, self.text, key)}: there is no recipe {name}, which this one builds on: it is looked for "
            f"from {folders[0]} and from the folders above {self.path}."
        )


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe's name: itself, with .yaml or .yml, or the config.yaml of a run directory. Raises a
    `ConfigError` if it does not exist; the message lists the candidates."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111  Path's own raises where there is no such user
    candidates = [path, Path(f"{path}.yaml"), Path(f"{path}.yml"), path / "config.yaml"]
    if path.suffix in (".yaml", ".yml"):
        candidates = [path]
    if holds_rows(name):
        init = command("init {file}", file=name)
        raise ConfigError(f"{name} holds rows, not a recipe. `{init}` writes a recipe for them.")
    for candidate in candidates:
        if os.path.isfile(candidate):  # noqa: PTH113  False for a name too long as well
            return candidate
    looked = ", ".join(str(candidate) for candidate in candidates)
    there = [str(file) for file in path.parent.glob("*.y*ml")] if os.path.isdir(path.parent) else []  # noqa: PTH112
    near = did_you_mean(difflib.get_close_matches(str(path), there, n=1, cutoff=0.7))
    raise ConfigError(f"There is no recipe {name}.{near} Looked for: {looked} (from {Path.cwd()}).")


def holds_rows(name: str | Path) -> bool:
    """Whether this is a data file; one in JSON that is a single object is a recipe."""
    path = os.path.expanduser(name)  # noqa: PTH111  as in `find_recipe`
    with suppress(OSError, ValueError):
        if path.endswith(".json") and isinstance(json.loads(Path(path).read_bytes()), dict):
            return False
    return path.lower().endswith(DATA_FILES) and os.path.isfile(path)  # noqa: PTH113


def read_file(path: Path) -> ConfigFile:
    """Read a config file. Raises a `ConfigError` if it is no valid YAML (with the line) or no mapping, its header or
    defaults list is wrong, or it is the record of a script."""
    from hydra.plugins.config_source import ConfigSource

    content, text = read_yaml(path), path.read_text(encoding="utf-8")
    if isinstance(script := content.get("script"), str):
        raise ConfigError(
            f"{path} records what the script {script} trained, and is no recipe: rewards and data are in the script. "
            "Run that again; its train(resume_from_checkpoint=True) goes on from the newest checkpoint."
        )
    try:
        package = ConfigSource._get_header_dict(text)["package"]
    except ValueError as error:
        raise ConfigError(f"{path}: its header cannot be read: {error}. Write `# @package _global_`.") from None
    defaults = content.pop("defaults", None)
    if defaults is not None and not isinstance(defaults, list):
        raise ConfigError(f"{path}: defaults must be a list of groups, for instance `- override /model: starter`.")
    return ConfigFile(path, text, package, defaults, content)


def script_of(path: Path) -> str | None:
    """The script whose training a run's config records; None of any other run, and of a file that cannot be read."""
    script = None
    with suppress(ConfigError):
        script = read_yaml(path).get("script")
    return script if isinstance(script, str) else None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as nested plain values, read as Hydra reads it; an empty file is an empty mapping. Raises a
    `ConfigError` that names file and line."""
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError, OmegaConfBaseException

    text = ""  # a name that is no file's cannot be read at all
    try:
        text = path.read_text(encoding="utf-8")
        check_yaml(text, path)
        content = OmegaConf.to_container(_parse(text or "{}"), resolve=False)
    except GrammarParseError as error:
        key = str(error.full_key or "A value")
        raise ConfigError(f"{_at(path, text, key)}: {key}{unreadable_reference(error)}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not valid YAML: {yaml_problem(error)}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {yaml_problem(error)}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (OmegaConfBaseException, ValueError) as error:  # a date, a set, a key that is not a string, `!!int abc`
        key = str(getattr(error, "full_key", None) or "a value")
        raise ConfigError(
            f"{_at(path, text, key)}: {key} is not a value of a config ({str(error).splitlines()[0]}): write a string "
            "in quotes, a number, true or false, a list, or a mapping of names to these."
        ) from None
    if not isinstance(content, dict) or (content and ":" not in text):  # OmegaConf turns a bare word into a key
        raise ConfigError(f"{path}: a config file holds `key: value` lines, this one holds something else.")
    return {str(key): value for key, value in content.items()}


def _parse(text: str) -> Any:
    """The YAML as OmegaConf reads it, which rejects repeated keys; with equal values they are accepted."""
    from omegaconf import OmegaConf

    try:
        return OmegaConf.create(text)
    except yaml.constructor.ConstructorError:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if tree is None:
            raise
        _drop_repeats(tree)
        return OmegaConf.create(yaml.serialize(tree))


def _drop_repeats(node: yaml.Node) -> None:
    """Drop keys repeated with the same value; one repeated with another value is a YAML error."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _drop_repeats(item)
    if not isinstance(node, yaml.MappingNode):
        return
    kept: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for name, value in node.value:
        _, before = kept.setdefault(str(name.value), (name, value))
        if before is not value and yaml.serialize(before) != yaml.serialize(value):
            raise yaml.constructor.ConstructorError(None, None, f"found duplicate key {name.value}", name.start_mark)
    node.value = list(kept.values())
    for _, value in node.value:
        _drop_repeats(value)


def unreadable_reference(error: Exception) -> str:
    """The message, after the key, about a text with `${` and no complete reference."""
    return (
        f" holds ${{, which begins a reference to another key, and cannot be read: {str(error).splitlines()[0]}. Write "
        "\\${ for the characters themselves."
    )


def quoted(written: Written) -> tuple[str, str]:
    """A value of a file in quotes as it was read, and as it was written: YAML reads `007` as 7."""
    path, _, line = written.place.rpartition(", line ")
    shown = f"'{show(written.value)}'"
    if written.typed or not line.isdigit() or not isinstance(written.value, bool | int | float):
        return shown, shown
    text = Path(path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    raw = re.sub(r"\s+#.*", "", text.partition(":")[2]).strip()
    read = _parse(f"a: {raw}").get("a") if re.fullmatch(r"[\w.+-]+", raw) else None
    return shown, f"'{raw}'" if read == written.value else shown


def _at(path: Path, text: str, key: str) -> str:
    """The place of a dotted key in a YAML file of this text."""
    line = _lines_of(text).get(key)
    return f"{path}, line {line}" if line else str(path)


@lru_cache(maxsize=8)
def _lines_of(text: str) -> dict[str, int]:
    """The line of every key of valid YAML, by dotted key."""
    found: dict[str, int] = {}

    def visit(node: yaml.Node | None, prefix: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                key = f"{prefix}{name.value}"
                found[key] = name.start_mark.line + 1
                visit(value, f"{key}.")

    visit(yaml.compose(text, Loader=yaml.SafeLoader), "")
    return found


@dataclass(frozen=True, slots=True)
class Part:
    """One config file of a run."""

    path: str
    """Hydra's config path: `model/starter`."""
    file: ConfigFile
    package: str
    """Where its keys lie: `training`; empty at the top."""
    group: str
    """The group whose option it is; empty for none."""
    chosen: bool
    """Whether the user chose it."""
    builtin: bool
    """Whether it is Covey's own."""
    is_recipe: bool
    """Whether it is a recipe or the user's primary config."""


@dataclass(frozen=True, slots=True)
class Composition:
    """What a run is made of."""

    parts: tuple[Part, ...]
    """In the order in which they are merged."""
    chosen: Mapping[str, str]
    """The groups that the user chooses, with the config path of the file that does; empty for the command line."""
    lines: tuple[str, ...]
    """The tree of defaults lists, as Hydra's `--info defaults-tree` shows it."""

    def option(self, group: str) -> Part | None:
        """The option of a group."""
        return next((part for part in reversed(self.parts) if part.group == group), None)

    def place(self, path: str) -> int:
        """The position of a file; that after all for the command line."""
        return next((number for number, part in enumerate(self.parts) if part.path == path), len(self.parts))
