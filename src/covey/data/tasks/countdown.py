"""The built-in task `countdown`: make a target from some numbers, each used once. Most problems have several answers.

A problem is its numbers, in any order, and its target. As with `arithmetic`, a hash of these decides whether it is held
out, regardless of seed, size and difficulty. Targets are made by combining the numbers at random, so each problem has a
known solution.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import ClassVar

from covey.answers.tasks import MOST_NUMBERS, count_countdown_modes
from covey.data.tasks.drawing import Drawing, Drawn, check_bounds, check_modes
from covey.errors import DataError

OPERATORS = ("+", "-", "*", "/")

_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2}
_NUMBER_BINDING = 3


@dataclass(frozen=True, slots=True)
class CountdownDifficulty(Drawing["CountdownProblem"]):
    """The kind of problems. The fields are those of the config's `dataset.difficulty`.

    A target has at most `max_digits` digits, or two where that is fewer.
    """

    min_digits: int = 1
    max_digits: int = 2
    min_operands: int = 3
    max_operands: int = 4
    operators: tuple[str, ...] = OPERATORS
    allow_negative: bool = False
    """Whether the target and the intermediate results of the known solution may be below zero."""
    min_modes: int | None = None
    """Fewest right answers that differ in their canonical form; None for any number, as below."""
    max_modes: int | None = None
    """Most of them."""

    NAME: ClassVar[str] = "countdown"
    CURE: ClassVar[str] = "Ask for fewer, or raise the difficulty (max_digits, max_operands, operators)."

    def __post_init__(self) -> None:
        check_bounds("countdown", self, most_digits=6, most_operands=8, operators=OPERATORS)
        check_modes(self.min_modes, self.max_modes)
        if self.counts_modes and self.max_operands > MOST_NUMBERS:
            raise DataError(
                f"min_modes and max_modes bound the right answers of a problem, which are enumerated for at most "
                f"{MOST_NUMBERS} numbers: set max_operands={MOST_NUMBERS} or fewer, not {self.max_operands}."
            )

    @property
    def counts_modes(self) -> bool:
        """Whether the number of right answers is bounded."""
        return self.min_modes is not None or self.max_modes is not None

    def __str__(self) -> str:
        modes = f", and {self.min_modes or 1} to {self.max_modes or 'any'} right answers" if self.counts_modes else ""
        return (
            f"countdown with {self.min_operands} to {self.max_operands} numbers of {self.min_digits} to "
            f"{self.max_digits} digits and operators {' '.join(self.operators)}{modes}"
        )

    def draw(self, rng: random.Random) -> CountdownProblem | None:
        """Combine random numbers in pairs until one value is left; None if that is not a valid target."""
        count = rng.randint(self.min_operands, self.max_operands)
        numbers = tuple(_number(rng.randint(self.min_digits, self.max_digits), rng) for _ in range(count))
        terms = [_Term(number, str(number)) for number in numbers]
        while len(terms) > 1:
            left, right = (terms.pop(rng.randrange(len(terms))) for _ in range(2))
            joined = _joined(left, right, self)
            if not joined:
                return None
            terms.append(rng.choice(joined))
        target = terms[0].value
        if abs(target) > self.max_target or (target < 1 and not self.allow_negative):
            return None
        return CountdownProblem(numbers, target, terms[0].text, self.operators)

    def fits(self, problem: CountdownProblem) -> bool:
        """Whether a problem has as many right answers as it should."""
        if not self.counts_modes:
            return True
        modes = count_countdown_modes(tuple(sorted(problem.numbers)), problem.target)
        return (self.min_modes or 1) <= modes <= (self.max_modes or modes)

    @property
    def max_target(self) -> int:
        """The largest target; without `allow_negative` the smallest is 1."""
        return max(99, int("9" * self.max_digits))


@dataclass(frozen=True, slots=True)
class CountdownProblem(Drawn):
    """Numbers, the target, and one solution."""

    numbers: tuple[int, ...]
    target: int
    solution: str
    operators: tuple[str, ...]
    """The operators that the text allows."""

    @property
    def text(self) -> str:
        """The question as the model reads it."""
        *first, last = map(str, self.numbers)
        signs = " ".join(self.operators)
        return (
            f"Make {self.target} out of {', '.join(first)} and {last}. Use every number exactly once, with {signs} and "
            "parentheses as you need them. The answer is the expression, without an equals sign."
        )

    @property
    def answer(self) -> str:
        """What a checker needs: JSON text with `numbers` and `target`."""
        return json.dumps({"numbers": list(self.numbers), "target": self.target})

    @property
    def canonical(self) -> str:
        """The same for all orders of the numbers."""
        return f"{' '.join(map(str, sorted(self.numbers)))} = {self.target}"


@dataclass(frozen=True, slots=True)
class _Term:
    """A value and its expression; `binding` decides where that needs parentheses."""

    value: int
    text: str
    binding: int = _NUMBER_BINDING


def _joined(a: _Term, b: _Term, difficulty: CountdownDifficulty) -> list[_Term]:
    """The results of each operator that are whole numbers, and positive ones without `allow_negative`."""
    found = []
    for operator in difficulty.operators:
        left, right = a, b
        if operator == "-" and a.value < b.value and not difficulty.allow_negative:
            left, right = b, a
        if operator == "/" and (b.value == 0 or a.value % b.value) and a.value:
            left, right = b, a
        value = _value(left.value, operator, right.value)
        if value is not None and (value > 0 or difficulty.allow_negative):
            found.append(_Term(value, _text(left, operator, right), _BINDING[operator]))
    return found


def _value(left: int, operator: str, right: int) -> int | None:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    return left // right if right and left % right == 0 else None


def _text(left: _Term, operator: str, right: _Term) -> str:
    binding = _BINDING[operator]
    tight = binding + (operator in "-/")  # after `-` or `/`, the same binding needs parentheses too
    before = f"({left.text})" if left.binding < binding else left.text
    after = f"({right.text})" if right.binding < tight else right.text
    return f"{before} {operator} {after}"


def _number(digits: int, rng: random.Random) -> int:
    return rng.randint(10 ** (digits - 1), 10**digits - 1)
