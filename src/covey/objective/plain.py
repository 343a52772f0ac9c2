"""Plain data: what a config and a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


class UnstorableError(TypeError):
    """The value is not plain data; the message says where, and its type."""


def plain_copy(value: Any, where: str = "", *, tensors: bool = False) -> Any:
    """The value as numbers, strings, booleans, None, and lists and mappings of them, sharing nothing with it.

    Args:
        value: the value.
        where: it is, for the message.
        tensors: whether tensors may be in it.

    Raises:
        UnstorableError: it is anything else.
    """
    if tensors and isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):  # NumPy's numbers derive from these
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        return {
            plain_copy(key): plain_copy(inner, f"{where}[{key!r}]", tensors=tensors) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        inside = [plain_copy(inner, f"{where}[{at}]", tensors=tensors) for at, inner in enumerate(value)]
        return tuple(inside) if isinstance(value, tuple) else inside
    raise UnstorableError(f"{where} holds a value of the type {type(value).__name__}")
