"""Replacing attributes of an object or module for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
