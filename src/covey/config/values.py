"""Checking one value against a type written as text (`"int | None"`), as annotations and the snapshot have it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from covey.errors import ConfigError


class BadKeyError(ConfigError):
    """A `ConfigError` about one key, so that whoever knows where the key was set can add it to the message."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}{text}")
        self.key = key
        """The full dotted key."""
        self.text = text
        """The message behind the key."""


_TAG = re.compile(r"[^\s<>/](?:[^<>]*[^\s<>/])?")


def check_tags(tags: Mapping[str, str]) -> None:
    """Check the names of tags, by their keys.

    Raises:
        BadKeyError: one of them is no name, or two are the same.
    """
    for key, name in tags.items():
        if not _TAG.fullmatch(name):
            raise BadKeyError(
                key, f"={name!r} is no name of a tag: give it without brackets, as think stands for <think> … </think>."
            )
    first, *others = tags.items()
    for key, name in others:
        if name == first[1]:
            raise BadKeyError(key, f"={name} is the name of {first[0]} too: the two need tags of their own.")


_UNION = re.compile(r"\|(?![^\[]*\])")  # a bar that no bracket encloses

_MAY_BE_INFINITE = ("training.max_grad_norm", "training.vllm_importance_sampling_clip_max")  # no limit at all


class _MisfitError(Exception):
    """The value is not of this type; the next member of the union may fit."""


def members(kind: str) -> list[str]:
    """The members of a union written as text: `"dict[str, int] | None"` gives `["dict[str, int]", "None"]`."""
    return [part.strip() for part in _UNION.split(kind)]


def is_mapping_kind(kind: str) -> bool:
    """Whether keys of the user's own choosing may stand below a key of this type."""
    return any(member.partition("[")[0] in ("dict", "Mapping") for member in members(kind))


def coerce(key: str, value: Any, kind: str) -> Any:
    """The value as its type wants it: `"1e-5"` becomes a float, a list becomes a tuple where the type says so.

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
    for exact in (True, False):  # an exact fit of any member comes before a converted one
        try:
            fit = _as_one_of(value, found, exact)
        except _MisfitError:
            continue
        if key not in _MAY_BE_INFINITE and _is_infinite(fit):
            raise BadKeyError(key, f"={show(value)} is out of range: it must be finite.")
        return fit
    raise BadKeyError(key, f"={show(value)} has the wrong type: it must be {describe(kind)}.{_hint(value, found)}")


def check_choice(key: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise a `BadKeyError` unless the value, or every element of a tuple or list, is one of the choices."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if item is not None and item not in choices:
            allowed = ", ".join(show(choice) for choice in choices)
            raise BadKeyError(key, f"={show(value)} is not possible: it must be {_one_of(choices)}{allowed}.")


def check_range(key: str, value: Any, low: float | None, high: float | None, above: float | None = None) -> None:
    """Raise a `BadKeyError` unless `low <= value <= high` and `value > above`; None bounds nothing. Of a tuple or list
    that goes for every element."""
    wanted = []
    if above is not None:
        wanted.append(f"above {above}")
    if low is not None:
        wanted.append(f"at least {low}")
    if high is not None:
        wanted.append(f"at most {high}")
    for item in value if isinstance(value, list | tuple) else (value,):
        if item is None or isinstance(item, str | bool):
            continue
        outside = (above is not None and item <= above) or (low is not None and item < low)
        if outside or (high is not None and item > high):
            raise BadKeyError(key, f"={show(value)} is out of range: it must be {' and '.join(wanted)}.")


def show(value: Any) -> str:
    """A value as people write it in YAML, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        value = list(value)
    text = repr(value) if not isinstance(value, str) or not value or value != value.strip() else value
    return text if len(text) <= 80 else text[:77] + "..."


def describe(kind: str) -> str:
    """A type in words."""
    words = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "text",
        "None": "null",
        "False": "false",
        "list[str]": "a list of texts",
        "tuple[str, ...]": "a list of texts",
        "tuple[int, ...]": "a list of whole numbers",
        "list[float]": "a list of numbers",
        "list[dict]": "a list of mappings",
        "list[list[int | str]]": "a list of two lists",
        "tuple[int | str, ...]": "a list of numbers and texts",
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
        return dict(value)
    head, _, inside = member.partition("[")
    if head in ("list", "tuple") and isinstance(value, list | tuple):
        item_kind = inside.removesuffix("]").removesuffix(", ...")
        items = [_as_one_of(item, members(item_kind), exact) for item in value]
        return items if head == "list" else tuple(items)
    raise _MisfitError


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
    """Whole numbers stay whole: some of TRL's `float` fields mean a count by one and a share by the other."""
    if isinstance(value, str) and not exact:
        try:
            value = float(value)
        except ValueError:
            raise _MisfitError from None
    if isinstance(value, int | float) and not math.isnan(value):
        return value
    raise _MisfitError


def _is_infinite(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_infinite(item) for item in value)
    return isinstance(value, float) and math.isinf(value)


def _hint(value: Any, found: list[str]) -> str:
    if isinstance(value, bool | int | float) and "str" in found:
        return f" If you mean the text, put it in quotes: '{str(value).lower() if isinstance(value, bool) else value}'."
    of_one = int if "tuple[int, ...]" in found else str
    if isinstance(value, of_one) and any(member.startswith(("list", "tuple")) for member in found):
        return f" For a list of one, write [{value}]."
    return ""


def _one_of(choices: Sequence[Any]) -> str:
    return "" if len(choices) == 1 else "one of "
