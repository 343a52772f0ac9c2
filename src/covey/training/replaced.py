"""Replacing attributes of an object or module for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Context manager: `owner` has these attributes; on exit its own are restored, or those of its class."""
    before = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in attributes:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


def all_replaced(owners: Sequence[tuple[Any, dict[str, Any]]]) -> ExitStack:
    """Context manager: `replaced` for each of these owners, with its attributes."""
    stack = ExitStack()
    for owner, attributes in owners:
        stack.enter_context(replaced(owner, **attributes))
    return stack
