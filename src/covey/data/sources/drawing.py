"""Drawing the problems of a built-in task at random, until a split has enough of them."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar, Generic, Literal, TypeVar

from covey.errors import DataError

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
