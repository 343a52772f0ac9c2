"""The built-in task `countdown`: make a target from some numbers, each used once. Most problems have several answers.

A problem is its numbers, in any order, and its target. As with `arithmetic`, a hash of that decides whether it is held
out, whatever the seed, the size or the difficulty. Targets are found by joining the numbers at random, so that each
problem comes with a way to solve it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from covey.data.arithmetic import Split, split_of
from covey.data.difficulty import check_bounds
from covey.errors import DataError

OPERATORS = ("+", "-", "*", "/")

_MAX_MISSES = 20_000  # draws in a row that bring nothing new before the problem space counts as exhausted
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2}
_NUMBER_BINDING = 3


@dataclass(frozen=True, slots=True)
class Difficulty:
    """What problems look like. The fields are those of the config's `dataset.difficulty`.

    A target has at most `max_digits` digits, or two where that is fewer.
    """

    min_digits: int = 1
    max_digits: int = 2
    min_operands: int = 3
    max_operands: int = 4
    operators: tuple[str, ...] = OPERATORS
    allow_negative: bool = False
    """Whether the target, and what the known solution meets on its way, may be below zero."""

    def __post_init__(self) -> None:
        check_bounds("countdown", self, most_digits=6, most_operands=8, operators=OPERATORS)

    @property
    def max_target(self) -> int:
        """The largest target, and without `allow_negative` one is the smallest."""
        return max(99, int("9" * self.max_digits))


@dataclass(frozen=True, slots=True)
class Problem:
    """Numbers, the target, and one way to get there."""

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

    @property
    def split(self) -> Split:
        """`test` for about one problem in eight."""
        return split_of(self.canonical)


def problems(difficulty: Difficulty, split: Split, seed: int, *, unique: bool = False) -> Iterator[Problem]:
    """Yield problems of one split, the same ones for the same arguments; it ends when it finds no more.

    Args:
        difficulty: the numbers, and the operators that join them.
        split: `train` or `test`; the two never share a problem.
        seed: fixes the order.
        unique: never yield a problem twice (evaluation sets).
    """
    rng = random.Random(f"covey-countdown-{split}-{seed}")
    seen: set[str] = set()
    misses = 0
    while misses < _MAX_MISSES:
        misses += 1
        problem = _draw(difficulty, rng)
        if problem is None or problem.split != split or (unique and problem.canonical in seen):
            continue
        if unique:
            seen.add(problem.canonical)
        misses = 0
        yield problem


def take(difficulty: Difficulty, split: Split, seed: int, count: int, *, unique: bool = False) -> list[Problem]:
    """The first `count` problems of `problems(...)`.

    Raises:
        DataError: when this difficulty does not have that many different problems.
    """
    found: list[Problem] = []
    for problem in problems(difficulty, split, seed, unique=unique):
        if len(found) == count:
            break
        found.append(problem)
    if len(found) < count:
        raise DataError(
            f"countdown with {difficulty.min_operands} to {difficulty.max_operands} numbers of "
            f"{difficulty.min_digits} to {difficulty.max_digits} digits and operators "
            f"{' '.join(difficulty.operators)} gives only {len(found)} different {split} problems, but {count} were "
            "asked for. Ask for fewer, or widen the difficulty (max_digits, max_operands, operators)."
        )
    return found


@dataclass(frozen=True, slots=True)
class _Term:
    """A value and how it was made; `binding` says where it needs parentheses."""

    value: int
    text: str
    binding: int = _NUMBER_BINDING


def _draw(difficulty: Difficulty, rng: random.Random) -> Problem | None:
    """Join random numbers two by two until one value is left; None when that is no good target."""
    count = rng.randint(difficulty.min_operands, difficulty.max_operands)
    numbers = tuple(_number(rng.randint(difficulty.min_digits, difficulty.max_digits), rng) for _ in range(count))
    terms = [_Term(number, str(number)) for number in numbers]
    while len(terms) > 1:
        left, right = (terms.pop(rng.randrange(len(terms))) for _ in range(2))
        joined = _joined(left, right, difficulty)
        if not joined:
            return None
        terms.append(rng.choice(joined))
    target = terms[0].value
    if abs(target) > difficulty.max_target or (target < 1 and not difficulty.allow_negative):
        return None
    return Problem(numbers, target, terms[0].text, difficulty.operators)


def _joined(a: _Term, b: _Term, difficulty: Difficulty) -> list[_Term]:
    """What the two can become, one term per operator: whole numbers only, and positive ones unless told otherwise."""
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
    tight = binding + (operator in "-/")  # what follows a minus or a division keeps the parentheses of its own kind
    before = f"({left.text})" if left.binding < binding else left.text
    after = f"({right.text})" if right.binding < tight else right.text
    return f"{before} {operator} {after}"


def _number(digits: int, rng: random.Random) -> int:
    return rng.randint(10 ** (digits - 1), 10**digits - 1)
