"""Checking one value against a type written as text (`"int | None"`) and bounds; the base of all config groups."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from covey.errors import ConfigError


class BadKeyError(ConfigError):
    """A `ConfigError` about one key, so that the place where the key was set can be added to the message."""

    def __init__(self, key: str, text: str, where: str = "") -> None:
        super().__init__(f"{key if len(key) <= 200 else f'{key[:197]}...'}{text}{where}")
        self.key = key
        """The full dotted key."""
        self.text = text
        """The message after the key."""
        self.where = where
        """A sentence on where it was set, with which the message ends; empty where that is not known yet."""


MAX_COUNT = 2**32 - 1
"""The largest absolute value of an integer; numpy takes no larger seed."""
_MAX_FLOAT, _MIN_FLOAT = 3.4028234663852886e38, 1.1754943508222875e-38
"""The largest and the smallest float32, beyond which a number becomes infinite or 0 in training."""
MAX_SECONDS = 31_536_000
"""A year, the longest timeout; the operating system accepts none much longer."""
MAX_TOKENS = 2**20
"""The longest completion or context."""
_LONGEST_NAME = 10_000
_LONGEST_TEXT = 100_000
_SEVERAL_LINES = frozenset(
    {
        *("dataset.system_prompt", "dataset.user_prompt_template", "dataset.answer_extractor", "model.chat_template"),
        *("logging.notes", "launch.slurm.setup", "training.vllm_structured_outputs_regex"),
    }
)
"""Keys whose text may be long and span several lines, as texts inside mappings may."""
_PATHS = frozenset(
    {
        *("output_dir", "resume", "model.name", "model.lora.path", "dataset.path", "dataset.test_path"),
        *("dataset.mixture.datasets.path", "evaluation.benchmark_paths", "launch.accelerate", "launch.log_dir"),
    }
)
"""Keys that may name a file or folder."""
_LONGEST_FILE_NAME = 255
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_LINE_BREAK = re.compile(r"[\n\r\x0b\x0c\x85\u2028\u2029]")

_TAG = re.compile(r"[^\s<>/]{1,64}")


def check_tags(tags: Mapping[str, str]) -> None:
    """Raise a `BadKeyError` for a name of a tag, by its key, that is not valid, or two that are equal."""
    for key, name in tags.items():
        if not _TAG.fullmatch(name) or _UNPRINTABLE.search(name):
            raise BadKeyError(
                key,
                f"={name[:64]!r} is not a tag name: write one word without brackets; think stands for "
                "<think> … </think>.",
            )
    first, *others = tags.items()
    for key, name in others:
        if name == first[1]:
            raise BadKeyError(key, f"={name} is the name of {first[0]} too: the two tags must differ.")


_UNION = re.compile(r"\|(?![^\[]*\])")  # a bar outside of brackets

_MAY_BE_INFINITE = (  # no limit at all, or the limit of a formula
    *("training.max_grad_norm", "training.vllm_importance_sampling_clip_max", "objective.xdr_tau"),
)


class _MisfitError(Exception):
    """The value is not of this type; the next member of the union may fit."""


def members(kind: str) -> list[str]:
    """The members of a union written as text: `"dict[str, int] | None"` gives `["dict[str, int]", "None"]`."""
    return [part.strip() for part in _UNION.split(kind)]


def is_mapping_kind(kind: str) -> bool:
    """Whether a key of this type may hold arbitrary keys."""
    return any(member.partition("[")[0] in ("dict", "Mapping") for member in members(kind))


def coerce(key: str, value: Any, kind: str) -> Any:
    """The value converted to its type: `"1e-5"` becomes a float, a list a tuple where the type says so.

    Args:
        key: full dotted key, for the message.
        value: what the user wrote.
        kind: the type as text; a union is tried from left to right.

    Raises:
        BadKeyError: when no member of the union fits.
    """
    found = members(kind)
    if value is None and "None" in found:
        return None
    _check_texts(key, value)
    for exact in (True, False):  # an exact fit of any member goes before a converted one
        try:
            fit = _as_one_of(value, found, exact)
        except _MisfitError:
            continue
        for number in fit if isinstance(fit, list | tuple) else (fit,):
            _check_size(key, number, fit)
        if found == ["str"] and not fit.strip():
            raise BadKeyError(key, f"='{fit}' is empty.")
        return fit
    raise BadKeyError(key, f"={show(value)} has the wrong type: it must be {describe(kind)}.{_hint(key, value, found)}")


def _check_texts(key: str, value: Any, *, inside: bool = False) -> None:
    """Reject texts that no file, terminal or model accepts, anywhere inside the value."""
    if isinstance(value, str):
        if found := _UNPRINTABLE.search(value):
            code = f"U+{ord(found[0]):04X}"
            what = "half of a character" if ord(found[0]) >= 0xD800 else "a control character"
            raise BadKeyError(key, f"={show(value)} holds {what} ({code}): remove it.")
        free = inside or key in _SEVERAL_LINES
        most = _LONGEST_TEXT if free else _LONGEST_NAME
        if len(value) > most:
            raise BadKeyError(key, f"={show(value)} is too long: {len(value)} characters, and at most {most} are read.")
        if not free and _LINE_BREAK.search(value):
            raise BadKeyError(key, f"={show(value)} must be one line of text.")
        if key in _PATHS and value.startswith("~") and os.path.expanduser(value).startswith("~"):  # noqa: PTH111
            raise BadKeyError(key, f"={show(value)} begins with the home of a user that this machine does not know.")
        if key in _PATHS and max(len(part.encode()) for part in value.split("/")) > _LONGEST_FILE_NAME:
            raise BadKeyError(key, f"={show(value)} is not a path: no file has a name of more than 255 bytes.")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            _check_texts(key, name, inside=True)
            _check_texts(key, inner, inside=True)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_texts(key, inner, inside=inside)


def _check_size(key: str, number: Any, value: Any) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return
    if isinstance(number, float) and math.isinf(number):
        if key in _MAY_BE_INFINITE and number > 0:
            return
        raise BadKeyError(key, f"={show(value)} is out of range: it must be finite.")
    most = _MAX_FLOAT if isinstance(number, float) else MAX_COUNT
    if abs(number) > most:
        shown = f"{most:.1e}" if isinstance(number, float) else str(most)
        raise BadKeyError(key, f"={show(value)} is out of range: it must lie between -{shown} and {shown}.")
    if 0 < abs(number) < _MIN_FLOAT:
        raise BadKeyError(key, f"={show(value)} is out of range: it must be 0 or further from 0 than {_MIN_FLOAT:.1e}.")


def check_choice(key: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise a `BadKeyError` unless the value, or every element of a tuple or list, is one of the choices."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if item is not None and item not in choices:
            allowed = ("one of " if len(choices) > 1 else "") + ", ".join(map(show, choices))
            raise BadKeyError(key, f"={show(value)} is not possible: it must be {allowed}.")


def check_range(
    key: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Raise a `BadKeyError` unless `low <= value <= high` and `above < value < below`; None means no bound. Applies
    to every element of a tuple or list."""
    bounds = (("above", above), ("at least", low), ("below", below), ("at most", high))
    wanted = " and ".join(f"{words} {show(bound)}" for words, bound in bounds if bound is not None)
    for item in value if isinstance(value, list | tuple) else (value,):
        if item is None or isinstance(item, str | bool):
            continue
        too_low = (above is not None and not item > above) or (low is not None and not item >= low)  # NaN is so too
        if too_low or (high is not None and item > high) or (below is not None and item >= below):
            raise BadKeyError(key, f"={show(value)} is out of range: it must be {wanted}.")


def show(value: Any) -> str:
    """A value as written in YAML, on one line, truncated."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        value = list(value)
    plain = isinstance(value, str) and value.isprintable() and value and value == value.strip()
    try:
        text = value if plain else repr(value)
    except ValueError:  # Python converts no number with more than 4,300 digits
        text = "(a number of thousands of digits)"
    return text if len(text) <= 80 else text[:77] + "..."


def describe(kind: str) -> str:
    """A type in words."""
    words = {
        "int": "an integer",
        "float": "a number",
        "bool": "true or false",
        "str": "a string",
        "None": "null",
        "False": "false",
        "list[str]": "a list of strings",
        "tuple[str, ...]": "a list of strings",
        "tuple[int, ...]": "a list of integers",
        "list[float]": "a list of numbers",
        "list[dict]": "a list of mappings",
        "list[list[int | str]]": "a list of two lists",
        "tuple[int | str, ...]": "a list of numbers and strings",
    }
    found = []
    for member in members(kind):
        name = words.get(member, "a mapping" if is_mapping_kind(member) else f"a Python {member} object")
        if name not in found:
            found.append(name)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"


def _as(value: Any, member: str, exact: bool) -> Any:
    if member == "bool" and isinstance(value, bool):
        return value
    if member == "False" and value is False:
        return value
    if member == "int" and not isinstance(value, bool):
        return _as_int(value, exact)
    if member == "float" and not isinstance(value, bool):
        return _as_float(value, exact)
    if member == "str" and isinstance(value, str):
        return value
    if is_mapping_kind(member) and isinstance(value, Mapping):
        return _as_mapping(value, member, exact)
    head, _, inside = member.partition("[")
    item_kind = inside.removesuffix("]").removesuffix(", ...")
    # One alone: a number, or a text that names something, rather than a list that quotes have made a text.
    alone = isinstance(value, int | float) or (isinstance(value, str) and value.strip()[:1] not in ("", "["))
    if not exact and not item_kind.startswith("list") and alone:
        value = [value]
    if head in ("list", "tuple") and isinstance(value, list | tuple):
        items = [_as_one_of(item, members(item_kind), exact) for item in value]
        return items if head == "list" else tuple(items)
    raise _MisfitError


def _as_mapping(value: Mapping[Any, Any], member: str, exact: bool) -> dict[str, Any]:
    """The mapping, its values converted as `dict[str, <type>]` says; without a type they are kept."""
    kind = member.partition(", ")[2].removesuffix("]")
    if not all(isinstance(name, str) for name in value):
        raise _MisfitError
    return {
        name: inner if kind in ("", "Any") else _as_one_of(inner, members(kind), exact) for name, inner in value.items()
    }


def _as_one_of(value: Any, found: list[str], exact: bool) -> Any:
    for member in found:
        try:
            return _as(value, member, exact)
        except _MisfitError:
            continue
    raise _MisfitError


def _as_int(value: Any, exact: bool) -> int:
    if isinstance(value, int):
        return value
    if not exact and isinstance(value, float) and value.is_integer():
        return int(value)
    raise _MisfitError


def _as_float(value: Any, exact: bool) -> float:
    """Integers stay integers: some of TRL's `float` fields read them as a count, and others as a share."""
    if isinstance(value, str) and not exact:
        try:
            value = math.inf if value == ".inf" else float(value)  # as YAML, and `covey config`, write it
        except ValueError:
            raise _MisfitError from None
    if isinstance(value, float) and math.isnan(value):
        raise _MisfitError
    if isinstance(value, int | float):
        return value
    raise _MisfitError


def _hint(key: str, value: Any, found: list[str]) -> str:
    if isinstance(value, bool | int | float) and "str" in found:
        return f" If you mean the string, put it in quotes: '{show(value)}'."
    if isinstance(value, str) and value.startswith("[") and any(m.startswith(("list", "tuple")) for m in found):
        return f" In quotes it is a text: write {shlex.quote(f'{key}={value}')}, in a file {value} without quotes."
    return ""


def option(
    default: Any = dataclasses.MISSING,
    *,
    choices: tuple[Any, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    live: str = "",
    refused: bool = False,
) -> Any:
    """A dataclass field with its allowed values.

    Args:
        default: of the field.
        choices: the possible values; empty for any.
        low: the least value.
        high: the greatest value.
        above: what the value must be above.
        live: when the field has an effect, as an expression of `covey.config.live`; empty for always.
        refused: whether setting it without effect is an error, as a run would go another way than asked for.
    """
    checks = {"choices": choices, "low": low, "high": high, "above": above}
    return field(default=default, metadata={**checks, "live": live, "refused": refused})


def both(first: str, second: str) -> str:
    """The expression of `live` that holds where both do; an empty one always holds."""
    return " and ".join(f"({one})" if " or " in one else one for one in (first, second) if one)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Checks every field against its own annotation and `option` when the object is made."""

    PREFIX: ClassVar[str] = ""
    LIVE: ClassVar[str] = ""
    """When any of its fields has an effect, besides what each says: see `option`."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if dataclasses.is_dataclass(value):  # a nested group, already checked
                continue
            key = self.PREFIX + item.name
            value = coerce(key, value, str(item.type))
            check_option(key, value, item)
            object.__setattr__(self, item.name, value)


def check_option(key: str, value: Any, item: dataclasses.Field[Any]) -> None:
    """Raise a `BadKeyError` for a value out of the range, or none of the choices, of its field's `option`."""
    if item.metadata.get("choices"):
        check_choice(key, value, item.metadata["choices"])
    check_range(key, value, **{bound: item.metadata.get(bound) for bound in ("low", "high", "above")})
