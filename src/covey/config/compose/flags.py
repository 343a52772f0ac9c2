"""Command-line words: a recipe, `key=value` overrides, and flags (`--learning_rate 1e-5`, `--no_bf16`).

How many words a flag takes depends on the type of its key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from covey.config.aliases.alias_result import ANYTHING
from covey.config.aliases.aliases import kind_of
from covey.config.aliases.conversions import is_there
from covey.config.keys import GROUPS
from covey.config.values import is_mapping_kind, members, show
from covey.config.yaml import check_yaml
from covey.errors import ConfigError

_FLAG = re.compile(r"--[A-Za-z_][\w.-]*(=.*)?", re.DOTALL)
_OVERRIDE = re.compile(r"(?:\+\+?)?([A-Za-z_][\w./@-]*)=.*", re.DOTALL)
_NUMBER = re.compile(r"-\.?\d.*|-(inf|nan)\b.*", re.IGNORECASE)
_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_MORE_GROUPS = ("experiment", "tuning")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag and its values."""

    name: str
    """Dotted, with underscores and without the leading dashes."""
    values: tuple[str, ...] = ()
    """Its values; none means true."""

    def __str__(self) -> str:
        text = " ".join(" ".join((f"--{self.name}", *self.values)).split())
        return text if len(text) <= 100 else f"{text[:97]}..."


@dataclass(frozen=True, slots=True)
class Words:
    """A command line, split."""

    recipe: str | None
    overrides: tuple[str | Flag, ...]
    """Everything after the recipe, in order."""


def split(words: Sequence[str]) -> Words:
    """Split the words of a command line, without the command's own options.

    Args:
        words: a recipe (only as the first word, without `=` unless it is a file or folder), overrides and flags.

    Raises:
        ConfigError: a flag without its value, `--no_X` for something that is not true or false, or a `-x`.
    """
    rest = list(words)
    recipe = None
    spaced = any(word.startswith("=") for word in rest[1:2])  # `key = value`
    if rest and not (spaced or rest[0].startswith(("+", "~", "-"))) and ("=" not in rest[0] or is_there(rest[0])):
        recipe = rest.pop(0)
    found: list[str | Flag] = []
    while rest:
        word = rest.pop(0)
        if _FLAG.fullmatch(word):
            found.append(_flag(word, rest))
        elif word.startswith("-"):
            raise ConfigError(
                f"The word `{word}` is not an option of this command. A flag is written with two dashes, as in "
                "--learning_rate 1e-5, and an override without any, as in training.learning_rate=1e-5."
            )
        else:
            found.append(word)
    return Words(recipe, tuple(found))


def parse(flag: Flag, kind: str) -> Any:
    """The value of a flag, parsed by its type; text that fits no other type stays text.

    Args:
        kind: the type as text, as `kind_of` has it.
    """
    wants = members(kind)
    if not flag.values:
        return True
    only = flag.values[0] if len(flag.values) == 1 else None
    if only in ("null", "None") and "None" in wants:
        return None
    if any(member.startswith(("list", "tuple")) for member in wants):
        return _list(flag, wants)
    assert only is not None
    if not kind:  # inside a mapping that is passed on as it is, or a whole group
        found = _bracketed(flag, only)
        return _scalar(only, ["int", "float"]) if found is None else found
    if is_mapping_kind(kind):
        found = _bracketed(flag, only)
        if found is None and "str" in wants:
            return only
        if not isinstance(found, dict):
            raise ConfigError(
                f"The flag --{flag.name} wants a mapping: write it as JSON, --{flag.name} '{{\"a\": 1}}', not "
                f"{show(' '.join(flag.values))}."
            )
        return found
    if "bool" in wants and only.lower() in _TRUTH and not ("int" in wants and only.isdigit()):
        return _TRUTH[only.lower()]
    return _scalar(only, wants)


def _flag(word: str, rest: list[str]) -> Flag:
    """Take a flag's values from the words after it."""
    name, equals, value = word.removeprefix("--").partition("=")
    name = name.replace("-", "_")
    if equals:
        return Flag(name, (value,))
    if rest[:1] == ["="]:
        raise ConfigError(f"The flag --{name} takes no spaces around =: write --{name}={''.join(rest[1:2])}.")
    kind, positive = kind_of(name), name.removeprefix("no_")
    if kind is None and positive != name and (switched := kind_of(positive)) is not None:
        if "bool" not in members(switched):
            raise ConfigError(
                f"The flag --{name} switches off what is true or false, and {positive} is not: write "
                f"--{positive} VALUE."
            )
        return Flag(positive, ("false",))
    wants = members(kind or "")
    if any(member.startswith(("list", "tuple")) for member in wants) and "list[list" not in str(wants):
        return Flag(name, tuple(_take_list(name, rest, may_be_empty=kind == ANYTHING)))
    following = bool(rest) and not _FLAG.fullmatch(rest[0])
    if "bool" in wants:
        takes = following and (rest[0].lower() in _TRUTH or ("str" in wants and not _is_override(rest[0])))
        return Flag(name, (rest.pop(0),) if takes else ())
    if kind is None:  # an error soon; taking the next word would obscure it
        return Flag(name, (rest.pop(0),) if following and not _is_override(rest[0]) else ())
    if not following:
        raise ConfigError(f"The flag --{name} needs a value: write --{name} VALUE, or --{name}=VALUE.")
    return Flag(name, (rest.pop(0),))


def _take_list(name: str, rest: list[str], may_be_empty: bool) -> list[str]:
    """The words up to the next flag or override."""
    found = []
    while rest and not _FLAG.fullmatch(rest[0]) and not _is_override(rest[0]):
        if rest[0].startswith("-") and not _NUMBER.fullmatch(rest[0]):
            break
        found.append(rest.pop(0))
    if not found and not may_be_empty:
        raise ConfigError(f"The flag --{name} needs one value or more: write --{name} A B.")
    return found


def _is_override(word: str) -> bool:
    """Whether the word sets or removes a known key."""
    if word.startswith("~"):
        return True
    match = _OVERRIDE.fullmatch(word)
    if match is None:
        return False
    name = match[1]
    return kind_of(name) is not None or name.partition(".")[0].partition("/")[0] in (*GROUPS, *_MORE_GROUPS)


def _list(flag: Flag, wants: list[str]) -> Any:
    if len(flag.values) == 1:
        found = _bracketed(flag, flag.values[0])
        if isinstance(found, list):
            return found
        if "str" in wants:
            return flag.values[0]
    texts = any(member in (ANYTHING, "list[str]", "tuple[str, ...]", "list[int | str]") for member in wants)
    return [value if texts else _scalar(value, ["float"]) for value in flag.values]


def _bracketed(flag: Flag, text: str) -> Any:
    """A mapping or list in JSON or one-line YAML; None for anything else."""
    if text.strip()[:1] not in ("[", "{"):
        return None
    check_yaml(text, f"The flag --{flag.name}")
    try:
        return json.loads(text)
    except ValueError:
        pass  # YAML's short form, [a, b], is not JSON
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        found = None
    if not isinstance(found, list | dict):
        raise ConfigError(
            f"The flag --{flag.name} has a value that is neither JSON nor YAML: {show(text)}. Write '{{\"a\": 1}}' or "
            "'[1, 2]', in quotes of the shell."
        )
    return found


def _scalar(text: str, wants: list[str]) -> Any:
    for member, read in (("int", int), ("float", float)):
        if member in wants or (member == "int" and "float" in wants):
            try:
                return read(text)
            except ValueError:
                continue
    if "str" not in wants and text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text
