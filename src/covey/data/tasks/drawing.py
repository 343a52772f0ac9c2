"""Drawing the problems of a built-in task at random, until a split has enough of them; the bounds of its difficulty."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from covey.errors import DataError


class Bounds(Protocol):
    """The common fields of the difficulties of all built-in tasks."""

    @property
    def min_digits(self) -> int: ...
    @property
    def max_digits(self) -> int: ...
    @property
    def min_operands(self) -> int: ...
    @property
    def max_operands(self) -> int: ...
    @property
    def operators(self) -> Sequence[str]: ...


def check_bounds(task: str, bounds: Bounds, *, most_digits: int, most_operands: int, operators: Sequence[str]) -> None:
    """Raise a `DataError` unless the bounds fit together and the task knows the operators."""
    if not 1 <= bounds.min_digits <= bounds.max_digits <= most_digits:
        raise DataError(
            f"min_digits={bounds.min_digits} and max_digits={bounds.max_digits} do not fit together: {task} needs "
            f"1 <= min_digits <= max_digits <= {most_digits}."
        )
    if not 2 <= bounds.min_operands <= bounds.max_operands <= most_operands:
        raise DataError(
            f"min_operands={bounds.min_operands} and max_operands={bounds.max_operands} do not fit together: {task} "
            f"needs 2 <= min_operands <= max_operands <= {most_operands}."
        )
    unknown = [operator for operator in bounds.operators if operator not in operators]
    if unknown or not bounds.operators:
        raise DataError(
            f"operators={list(bounds.operators)} is not a list of arithmetic operators: use one or more of "
            f"{', '.join(operators)}."
        )


def check_modes(least: int | None, most: int | None) -> None:
    """Raise a `DataError` if the bounds on the number of right answers do not fit together."""
    if (least or 1) < 1 or (most is not None and most < (least or 1)):
        raise DataError(f"min_modes={least} and max_modes={most} do not fit together: 1 <= min_modes <= max_modes.")


Split = Literal["train", "test"]

HELD_OUT_SHARE = 1 / 8
"""Share of all problems that the hash puts into the held-out split."""
_MAX_DRAWS = 300
"""Draws per problem, on average; with more, drawing many problems would take hours."""


def split_of(canonical: str) -> Split:
    """The split of a problem, from its canonical form alone."""
    digest = hashlib.blake2b(canonical.encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64 else "train"


class Drawn(ABC):
    """A problem of any built-in task."""

    __slots__ = ()

    @property
    @abstractmethod
    def canonical(self) -> str:
        """The same for problems that count as one."""

    @property
    def split(self) -> Split:
        """`test` for about one problem in eight."""
        return split_of(self.canonical)


ProblemT = TypeVar("ProblemT", bound=Drawn)


class Drawing(ABC, Generic[ProblemT]):
    """How a built-in task draws problems; its difficulty derives from this, and its text names it in messages."""

    __slots__ = ()

    NAME: ClassVar[str]
    """Part of the seed."""
    CURE: ClassVar[str]
    """What to change if there are too few problems."""
    MAX_MISSES: ClassVar[int] = 20_000
    """Draws in a row without a new problem before the problems count as exhausted."""

    @abstractmethod
    def draw(self, rng: random.Random) -> ProblemT | None:
        """A problem; None for a draw that is none."""

    def fits(self, problem: ProblemT) -> bool:
        """What a problem must be, besides; asked last."""
        return True


def problems(difficulty: Drawing[ProblemT], split: Split, seed: int, *, unique: bool = False) -> Iterator[ProblemT]:
    """Yield problems of one split, the same ones for the same arguments.

    Args:
        difficulty: draws them.
        split: `train` or `test`; the two never share a problem.
        seed: fixes the order.
        unique: never yield a problem twice (evaluation sets); the iterator ends when it finds no more.
    """
    rng = random.Random(f"covey-{difficulty.NAME}-{split}-{seed}")
    seen: set[str] = set()
    misses, draws, made = 0, 0, 0
    while misses < difficulty.MAX_MISSES and draws < difficulty.MAX_MISSES + _MAX_DRAWS * made:
        misses += 1
        draws += 1
        problem = difficulty.draw(rng)
        if problem is None or problem.split != split:
            continue
        key = problem.canonical if unique else ""
        if key in seen or not difficulty.fits(problem):
            continue
        if unique:
            seen.add(key)
        misses = 0
        made += 1
        yield problem


def take(difficulty: Drawing[ProblemT], split: Split, seed: int, count: int, *, unique: bool = False) -> list[ProblemT]:
    """The first `count` problems of `problems(...)`. Raises a `DataError` when this difficulty does not have that many
    different problems, or they are too rare to find."""
    found = list(islice(problems(difficulty, split, seed, unique=unique), count))
    if len(found) < count:
        raise DataError(
            f"{difficulty} gives only {len(found)} different {split} problems, but {count} were requested. "
            f"{difficulty.CURE}"
        )
    return found
