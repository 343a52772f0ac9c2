"""Drawing the problems of a built-in task at random, until a split has enough of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol, TypeVar

from covey.errors import DataError

_MAX_DRAWS = 300
"""Draws per problem, on average; with more, drawing many problems would take hours."""


class Drawn(Protocol):
    """A problem of any built-in task."""

    @property
    def canonical(self) -> str:
        """The same for problems that count as one."""

    @property
    def split(self) -> str:
        """`train` or `test`."""


ProblemT = TypeVar("ProblemT", bound=Drawn)


def drawn(
    draw: Callable[[], ProblemT | None],
    split: str,
    *,
    unique: bool,
    max_misses: int,
    fits: Callable[[ProblemT], bool] = lambda _: True,
) -> Iterator[ProblemT]:
    """Yield drawn problems of one split.

    Args:
        draw: draws one; None for a draw that is no problem.
        split: `train` or `test`.
        unique: never yield a problem twice; the iterator ends when it finds no more.
        max_misses: draws in a row without a new problem before the problems count as exhausted.
        fits: what a problem must be, besides; asked last.
    """
    seen: set[str] = set()
    misses, draws, made = 0, 0, 0
    while misses < max_misses and draws < max_misses + _MAX_DRAWS * made:
        misses += 1
        draws += 1
        problem = draw()
        if problem is None or problem.split != split:
            continue
        key = problem.canonical if unique else ""
        if key in seen or not fits(problem):
            continue
        if unique:
            seen.add(key)
        misses = 0
        made += 1
        yield problem


def enough(problems: Iterator[ProblemT], count: int, split: str, task: str, cure: str) -> list[ProblemT]:
    """The first `count` problems.

    Args:
        problems: of the task.
        count: how many are wanted.
        split: theirs, for the message.
        task: what they are, for the message.
        cure: what to change if there are not as many.

    Raises:
        DataError: there are fewer different ones, or they are too rare to find.
    """
    found = list(islice(problems, count))
    if len(found) < count:
        raise DataError(
            f"{task} gives only {len(found)} different {split} problems, but {count} were requested. {cure}"
        )
    return found
