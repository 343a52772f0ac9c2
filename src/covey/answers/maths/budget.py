"""The work budget for comparing one pair of answers: counted, not timed, so that verdicts are reproducible.

The unit is about a microsecond on a machine of 2026. Expensive work is paid for before it is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_left: ContextVar[float] = ContextVar("left", default=float("inf"))


class ExhaustedError(Exception):
    """The budget is used up."""


@contextmanager
def allowed(work: float) -> Iterator[None]:
    """Set the budget inside the block, in microseconds."""
    token = _left.set(work)
    try:
        yield
    finally:
        _left.reset(token)


def spend(work: float) -> None:
    """Pay for work before it is done. Raises an `ExhaustedError` if less is left."""
    left = _left.get() - work
    if left < 0:
        raise ExhaustedError
    _left.set(left)
