"""Values of the user's code, converted to plain data that any process can read."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_MAX_DEPTH = 40
_MAX_BITS = 64


class NotPlainError(TypeError):
    """The value is not plain data; the message names its type."""


def plain(value: Any, depth: int = 0) -> Any:
    """The value as plain data: numbers, strings, booleans, None, and lists and mappings of them.

    NumPy and PyTorch scalars, arrays and tensors become numbers and lists; decimals and fractions floats; dates and
    paths strings. What UTF-8 cannot encode (half of a surrogate pair) becomes `?`.

    Raises:
        NotPlainError: it is anything else.
    """
    if value is None or isinstance(value, bool):
        return value
    if depth > _MAX_DEPTH:
        raise NotPlainError(f"lists more than {_MAX_DEPTH} deep")
    match value:
        case str():
            return writable(value)
        case enum.Enum():
            return plain(value.value, depth + 1)
        case int():
            if value.bit_length() > _MAX_BITS:
                raise NotPlainError(f"a whole number of more than {_MAX_BITS} bits")
            return int(value)
        case float() | decimal.Decimal() | fractions.Fraction():
            return float(value)
        case datetime.date() | datetime.time() | datetime.timedelta() | PurePath():
            return writable(str(value))
        case Mapping():
            return {writable(str(name)): plain(inner, depth + 1) for name, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(inner, depth + 1) for inner in value]
    if callable(getattr(value, "tolist", None)):  # NumPy, PyTorch, JAX
        listed = value.tolist()
        if type(listed) is not type(value):
            return plain(listed, depth + 1)
    raise NotPlainError(f"a value of the type {type(value).__name__}")


def writable(text: str) -> str:
    """The text, with `?` for what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
