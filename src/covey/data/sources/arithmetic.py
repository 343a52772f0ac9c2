"""The built-in task `arithmetic`: seeded, unlimited sums and differences with disjoint train and held-out problems.

A hash of a problem's canonical form decides whether it is held out, regardless of seed, size and difficulty. So all
calls agree on which problems are held out, and the starter model, which was trained on train problems only, has not
seen any held-out one. `a + b` and `b + a` are one problem.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from covey.data.sources.difficulty import check_bounds
from covey.data.sources.drawing import drawn, enough

Split = Literal["train", "test"]

OPERATORS = ("+", "-", "*")
HELD_OUT_SHARE = 1 / 8
"""Share of all problems that the hash puts into the held-out split."""

_MAX_MISSES = 10_000  # draws in a row without a new problem before the problem space counts as exhausted


@dataclass(frozen=True, slots=True)
class Difficulty:
    """The kind of problems. Operand lengths are drawn uniformly from `min_digits..max_digits`, independently.

    The fields are those of the config's `dataset.difficulty` and `dataset.hard_difficulty`.
    """

    min_digits: int = 2
    max_digits: int = 4
    min_operands: int = 2
    max_operands: int = 2
    operators: tuple[str, ...] = ("+", "-")
    allow_negative: bool = False
    """Whether an answer may be below zero. If not, such draws are rejected."""

    def __post_init__(self) -> None:
        check_bounds("arithmetic", self, most_digits=18, most_operands=16, operators=OPERATORS)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: `operands[0] operators[0] operands[1] operators[1] …` with `*` binding tighter."""

    operands: tuple[int, ...]
    operators: tuple[str, ...]

    @property
    def expression(self) -> str:
        parts = [str(self.operands[0])]
        for operator, operand in zip(self.operators, self.operands[1:], strict=True):
            parts += [operator, str(operand)]
        return " ".join(parts)

    @property
    def text(self) -> str:
        """The question as the model reads it."""
        return f"What is {self.expression}?"

    @property
    def answer(self) -> int:
        total, term, sign = 0, self.operands[0], 1
        for operator, operand in zip(self.operators, self.operands[1:], strict=True):
            if operator == "*":
                term *= operand
            else:
                total += sign * term
                term, sign = operand, 1 if operator == "+" else -1
        return total + sign * term

    @property
    def split(self) -> Split:
        """`test` for about one problem in eight, from the canonical form alone."""
        return split_of(self.canonical)

    @property
    def canonical(self) -> str:
        """The same for problems that differ only in the order of a sum or product."""
        if len(set(self.operators)) == 1 and self.operators[0] in "+*":
            return self.operators[0].join(map(str, sorted(self.operands)))
        return self.expression.replace(" ", "")


def split_of(canonical: str) -> Split:
    """The split of a problem, from its canonical form alone."""
    digest = hashlib.blake2b(canonical.encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64 else "train"


def problems(difficulty: Difficulty, split: Split, seed: int, *, unique: bool = False) -> Iterator[Problem]:
    """Yield problems of one split without end, the same ones for the same arguments.

    Args:
        difficulty: lengths, number of operands and operators.
        split: `train` or `test`; the two never share a problem.
        seed: fixes the order.
        unique: never yield a problem twice (evaluation sets); the iterator ends when it finds no more.
    """
    rng = random.Random(f"covey-arithmetic-{split}-{seed}")

    def fits(problem: Problem) -> bool:
        return difficulty.allow_negative or problem.answer >= 0

    return drawn(lambda: _draw(difficulty, rng), split, unique=unique, max_misses=_MAX_MISSES, fits=fits)


def take(difficulty: Difficulty, split: Split, seed: int, count: int, *, unique: bool = False) -> list[Problem]:
    """The first `count` problems of `problems(...)`. Raises a `DataError` when this difficulty does not have that many
    different problems, or they are too rare to find."""
    task = (
        f"arithmetic with {difficulty.min_digits} to {difficulty.max_digits} digits, {difficulty.min_operands} to "
        f"{difficulty.max_operands} operands and operators {' '.join(difficulty.operators)}"
    )
    cure = "Ask for fewer, or raise the difficulty (max_digits, max_operands, operators)."
    return enough(problems(difficulty, split, seed, unique=unique), count, split, task, cure)


def _draw(difficulty: Difficulty, rng: random.Random) -> Problem:
    count = rng.randint(difficulty.min_operands, difficulty.max_operands)
    operands = tuple(_number(rng.randint(difficulty.min_digits, difficulty.max_digits), rng) for _ in range(count))
    operators = tuple(rng.choice(difficulty.operators) for _ in range(count - 1))
    if count == 2 and operators == ("-",) and not difficulty.allow_negative:
        operands = (max(operands), min(operands))
    return Problem(operands, operators)


def _number(digits: int, rng: random.Random) -> int:
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)
