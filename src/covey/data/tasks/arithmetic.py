"""The built-in task `arithmetic`: seeded, unlimited sums and differences with disjoint train and held-out problems.

A hash of a problem's canonical form decides whether it is held out, regardless of seed, size and difficulty. So all
calls agree on which problems are held out, and the starter model, which was trained on train problems only, has not
seen any held-out one. `a + b` and `b + a` are one problem.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from covey.data.tasks.drawing import Drawing, Drawn, check_bounds

OPERATORS = ("+", "-", "*")


@dataclass(frozen=True, slots=True)
class Difficulty(Drawing["Problem"]):
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

    NAME: ClassVar[str] = "arithmetic"
    CURE: ClassVar[str] = "Ask for fewer, or raise the difficulty (max_digits, max_operands, operators)."
    MAX_MISSES: ClassVar[int] = 10_000

    def __post_init__(self) -> None:
        check_bounds("arithmetic", self, most_digits=18, most_operands=16, operators=OPERATORS)

    def __str__(self) -> str:
        return (
            f"arithmetic with {self.min_digits} to {self.max_digits} digits, {self.min_operands} to "
            f"{self.max_operands} operands and operators {' '.join(self.operators)}"
        )

    def draw(self, rng: random.Random) -> Problem:
        count = rng.randint(self.min_operands, self.max_operands)
        operands = tuple(_number(rng.randint(self.min_digits, self.max_digits), rng) for _ in range(count))
        operators = tuple(rng.choice(self.operators) for _ in range(count - 1))
        if count == 2 and operators == ("-",) and not self.allow_negative:
            operands = (max(operands), min(operands))
        return Problem(operands, operators)

    def fits(self, problem: Problem) -> bool:
        return self.allow_negative or problem.answer >= 0


@dataclass(frozen=True, slots=True)
class Problem(Drawn):
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
    def canonical(self) -> str:
        """The same for problems that differ only in the order of a sum or product."""
        if len(set(self.operators)) == 1 and self.operators[0] in "+*":
            return self.operators[0].join(map(str, sorted(self.operands)))
        return self.expression.replace(" ", "")


def _number(digits: int, rng: random.Random) -> int:
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)
