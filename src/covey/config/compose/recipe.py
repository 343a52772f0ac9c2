"""Reading a recipe: a YAML file of group choices (`defaults:`) and keys to set, nested or dotted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from covey.config.aliases.resolve import leaves
from covey.config.keys import check_length
from covey.config.settings import Choice, Written
from covey.config.yaml_limits import check_yaml
from covey.errors import ConfigError

_BASES = ("maxent.recipe", "baseline.recipe", "script.recipe")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The content of a recipe file."""

    path: Path
    choices: tuple[Choice, ...]
    written: tuple[Written, ...]
    """Every key it sets, aliases included, in order; interpolations not yet resolved."""
    complete: bool
    """Whether it has `defaults: []`: a complete config, without Covey's defaults."""
    base: Recipe | None = None
    """The recipe it builds on, as the MaxEnt-GRPO project's do."""

    @property
    def chain(self) -> tuple[Recipe, ...]:
        """The recipes it builds on, outermost first, and itself."""
        return (*(self.base.chain if self.base is not None else ()), self)


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe's name: itself, with .yaml or .yml, or the config.yaml of a run directory.

    Raises:
        ConfigError: it does not exist; the message lists the candidates.
    """
    path = Path(os.path.expanduser(name))  # noqa: PTH111  Path's own raises where there is no such user
    candidates = [path, Path(f"{path}.yaml"), Path(f"{path}.yml"), path / "config.yaml"]
    if path.suffix in (".yaml", ".yml"):
        candidates = [path]
    for candidate in candidates:
        if os.path.isfile(candidate):  # noqa: PTH113  False for a name too long as well
            return candidate
    looked = ", ".join(str(candidate) for candidate in candidates)
    raise ConfigError(f"There is no recipe {name}. Looked for: {looked} (from {Path.cwd()}).")


def read_recipe(name: str | Path) -> Recipe:
    """Read a recipe file.

    Raises:
        ConfigError: no such file, no valid YAML (with the line), no mapping, or one key set twice.
    """
    path = find_recipe(name)
    content = read_yaml(path)
    defaults = content.pop("defaults", None)
    if defaults is not None and not isinstance(defaults, list):
        raise ConfigError(f"{path}: defaults must be a list of groups, for instance `- override /model: starter`.")
    choices = tuple(parse_defaults(defaults or [], str(path)))
    written = tuple(leaves(content, place=lambda key: _at(path, key)))
    _check_names(written, path)
    own = tuple(item for item in written if item.name not in _BASES)
    bases = [item for item in written if item.name in _BASES and item.value]
    if not bases:
        return Recipe(path, choices, own, defaults == [])
    base = read_recipe(_find_base(bases[0], path))
    return Recipe(path, choices, own, base.complete and not choices, base)


def _check_names(written: Sequence[Written], path: Path) -> None:
    """Reject a name that is too long to be one, and one that is set twice, dotted and nested."""
    for name, times in Counter(item.name for item in written).items():
        check_length(name)
        if times > 1:
            raise ConfigError(f"{path}: {name} is set twice in this recipe; keep one of them.")


def _find_base(item: Written, path: Path) -> Path:
    """The recipe that another one builds on, relative to the working directory or a folder above that other one."""
    name = Path(str(item.value)).expanduser()
    folders = [Path.cwd(), *path.absolute().parents]
    for folder in folders:
        if (folder / name).is_file() and not (folder / name).samefile(path):
            return folder / name
    raise ConfigError(
        f"{item.place}: there is no recipe {name}, which this one builds on: it is looked for from "
        f"{folders[0]} and from the folders above {path}."
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as nested plain values, read as Hydra reads it; an empty file is an empty mapping.

    Raises:
        ConfigError: naming file and line.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError, OmegaConfBaseException

    try:
        text = path.read_text(encoding="utf-8")
        check_yaml(text, path)
        content = OmegaConf.to_container(_parse(text or "{}"), resolve=False)
    except GrammarParseError as error:
        key = str(error.full_key or "A value")
        raise ConfigError(f"{_at(path, key)}: {key}{unreadable_reference(error)}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not valid YAML: {error.problem or error}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (OmegaConfBaseException, ValueError) as error:  # a date, a set, a key that is not a string, `!!int abc`
        key = str(getattr(error, "full_key", None) or "a value")
        raise ConfigError(
            f"{_at(path, key)}: {key} is not a value of a config ({str(error).splitlines()[0]}): write a string in "
            "quotes, a number, true or false, a list, or a mapping of names to these."
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


def parse_defaults(entries: list[Any], origin: str) -> list[Choice]:
    """The group choices of a Hydra-style defaults list: `- override /model: starter`, `- model: starter`, `- _self_`.

    Raises:
        ConfigError: an entry of another form.
    """
    found = []
    for entry in entries:
        if entry == "_self_":
            continue
        if isinstance(entry, str) and "/" in entry.strip("/"):
            group, _, option = entry.strip("/").rpartition("/")
            found.append(Choice(group, option, origin=origin))
            continue
        if not isinstance(entry, dict) or len(entry) != 1:
            raise ConfigError(
                f"{origin}: the entry {entry!r} of defaults is not one that Covey reads: write `- override /model: "
                "starter` or `- model: starter`."
            )
        ((key, option),) = entry.items()
        words = str(key).split()
        optional = "optional" in words[:-1]
        for one in option if isinstance(option, list) else [option]:
            found.append(Choice(words[-1].strip("/"), None if one is None else str(one), optional, origin))
    return found


def line_of(path: Path, key: str) -> int | None:
    """The line of a dotted key in a YAML file; None when it is not there."""
    return _lines_of(path.read_text(encoding="utf-8")).get(key)


def _at(path: Path, key: str) -> str:
    line = line_of(path, key)
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
