"""Reading the overrides and flags of a command line: group choices, and keys to set or remove."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config.aliases.aliases import FOREIGN_GROUPS, keeps_text, kind_of
from covey.config.aliases.resolve import leaves
from covey.config.compose.flags import Flag, parse
from covey.config.compose.group_files import Roots
from covey.config.compose.render import escape
from covey.config.keys import GROUPS, Choice, Written, check_length
from covey.config.values import coerce, describe, members
from covey.config.yaml import MAX_DEPTH
from covey.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_GRAMMAR = re.compile(r"^(mismatched|extraneous|missing|no viable|token recognition)")
"""Messages of the parser about its grammar, which say nothing to a user."""


_UNQUOTED = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?:\$\{[^{}]*\}|[^\s\[\]{}(),"'=$])+""")
"""A text in quotes, or a word without."""


def read_overrides(words: Iterable[str | Flag], roots: Roots) -> tuple[list[Choice], list[Written]]:
    """The group choices and the keys, each in order. Raises a `ConfigError` for a word that cannot be read."""
    choices: list[Choice] = []
    written: list[Written] = []
    listed = list(words)
    for place, word in enumerate(listed):
        if isinstance(word, Flag):
            read = _read_flag(word, roots)
        else:
            try:
                override = _parse(word)
            except ConfigError as error:
                if not (meant := _as_one_word(listed, place)):
                    raise
                what = str(error).replace(f" {_how_to_write(word)}", "").replace(": write key=value.", ".")
                raise ConfigError(f"{what} If the shell has split one word at its spaces, write {meant}.") from None
            read = _as_choice(override, roots) or _as_written(override)
        if isinstance(read, Choice):
            choices.append(read)
        else:
            written += read
    return choices, written


def _read_flag(flag: Flag, roots: Roots) -> Choice | list[Written]:
    check_length(flag.name)
    if roots.is_group(flag.name):
        if len(flag.values) != 1:
            raise ConfigError(f"The flag --{flag.name} chooses one option of the group {flag.name}: write one name.")
        option = flag.values[0]
        return Choice(flag.name, None if option in ("null", "None") else option, origin=f"`{flag}`")
    kind = kind_of(flag.name)
    return _written(
        flag.name, escape(parse(flag, kind)) if kind is not None else " ".join(flag.values), "flag", str(flag)
    )


def _written(name: str, value: Any, by: str, text: str) -> list[Written]:
    """The keys that a word sets: several when its value is a mapping for a group."""
    if isinstance(value, Mapping) and (name in GROUPS or name in FOREIGN_GROUPS):
        return list(leaves(value, f"{name}.", by=by, place=lambda key: text))
    return [Written(name, value, by, text)]


def _as_one_word(words: Sequence[str | Flag], place: int) -> str:
    """The override that the shell has split at its spaces, in quotes where it needs them; empty if there is none."""
    for start in (place, place - 1)[: place + 1]:
        texts = list(takewhile(lambda word: isinstance(word, str), words[start:]))
        for end in range(len(texts), 1, -1):
            meant = re.sub(r"\s*=\s*", "=", " ".join(map(str, texts[:end])), count=1)
            key, _, value = meant.partition("=")
            try:
                if value and not value.endswith((".yaml", ".yml")):
                    coerce(key, _plain(_value(_parse(meant))), kind_of(key) or "float")
                    return shlex.quote(meant)
            except ConfigError:
                continue
    return ""


def _parse(text: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if "=" not in text and not text.startswith("~"):
        hint = " A recipe is given once, before the overrides." if Path(text).suffix in (".yaml", ".yml") else ""
        raise ConfigError(f"The argument `{_short(text)}` is not an override: write key=value.{hint}")
    key = text.partition("=")[0]
    check_length(key)
    try:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:  # its grammar takes no ~ nor other than ASCII letters without quotes, as in ~/a and /é
            name, equals, value = text.partition("=")
            override = OverridesParser.create().parse_override(f"{name}{equals}{_UNQUOTED.sub(_quote, value)}")
            override.input_line = text
        deep = _depth(override.value()) > MAX_DEPTH
    except RecursionError:
        deep = True
    except (HydraException, ValueError) as error:  # a number with more digits than Python reads
        reason = str(error).splitlines()[0]
        why = "" if _GRAMMAR.search(reason) else f" ({reason})"
        how = _how_to_write(text)
        raise ConfigError(f"The override `{_short(text)}` cannot be read{why}. {how}") from None
    if deep:
        raise ConfigError(f"The override `{_short(text)}` is nested more than {MAX_DEPTH} levels deep: use fewer.")
    if override.is_sweep_override():
        raise ConfigError(
            f"The override `{_short(text)}` is a sweep over several values, and this is one run: `covey train "
            f"--multirun` runs them all. {_how_to_write(text)}"
        )
    return override


def _quote(word: re.Match[str]) -> str:
    """The word in quotes, where Hydra's grammar does not take it without."""
    return f'"{word[0]}"' if word[1] is None and ("~" in word[0] or not word[0].isascii()) else word[0]


def _how_to_write(text: str) -> str:
    """How this override is written with spaces, brackets, commas or `=` in its value."""
    name, _, value = text.partition("=")
    kind = kind_of(name.lstrip("+")) or ""
    is_list = any(member.startswith(("list", "tuple")) for member in members(kind))
    if not is_list and kind and "str" not in members(kind):
        return f"The value is {describe(kind)}."
    plain = re.fullmatch(r"[\w ./:@%+-]+(, *[\w ./:@%+-]+)*" if is_list else r"[^\"\\]+", value)
    word = name + ("=[{}]" if is_list else '="{}"').format(value if plain and len(value) <= 100 else "…")
    what = "A list is put into brackets" if is_list else "Put the text into quotes"
    return f"{what}, and the whole word into quotes of the shell: {shlex.quote(word)}."


def _as_choice(override: Override, roots: Roots) -> Choice | None:
    """The group choice an override makes; None when it sets a key."""
    group = override.key_or_group
    value = override.value()
    if not roots.is_group(group) or isinstance(value, dict):
        return None
    if override.package is not None:
        group = f"{group}@{override.package}"
    if override.is_delete() or value is None:
        return Choice(group, None, origin=f"`{_short(override.input_line)}`")
    if isinstance(value, list):
        raise ConfigError(f"The override `{_short(override.input_line)}`: choose one option of {group}, not a list.")
    return Choice(group, str(value), origin=f"`{_short(override.input_line)}`")


def _as_written(override: Override) -> list[Written]:
    key, text = override.key_or_group, _short(override.input_line)
    if override.is_delete():
        return [Written(key, override.value(), "override", text, delete=True)]
    return _written(key, _plain(_value(override)), "override", text)


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inside), default=0)


def _short(text: str | None) -> str:
    """The text on one line, truncated."""
    words = " ".join(str(text).split())
    return words if len(words) <= 100 else f"{words[:97]}..."


def _value(override: Override) -> Any:
    """The value as parsed, except that a text key keeps `1e5` or `007` exactly as it was typed."""
    value = override.value()
    if isinstance(value, bool | int | float) and keeps_text(override.key_or_group) and override.input_line is not None:
        return override.input_line.partition("=")[2].strip()
    return value


def _plain(value: Any) -> Any:
    """Hydra's quoted texts as plain ones, all the way down."""
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
