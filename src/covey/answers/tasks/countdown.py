"""The countdown game: a target out of given numbers. Reading answers, and every right answer of a problem."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import product
from operator import add, mul, sub, truediv
from types import MappingProxyType
from typing import Any, TypeVar

from covey.answers.tasks.expressions import Arithmetic, Form, UnreadableExpressionError, read
from covey.answers.tasks.gold import read_json

MOST_NUMBERS = 5
"""Up to so many numbers all right answers of a problem are enumerated: five make 27,142 expressions that differ."""

_APPLY: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType({"+": add, "-": sub, "*": mul, "/": truediv})
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?", re.ASCII)
T = TypeVar("T", bound=Arithmetic)
_PRIME = 2**61 - 1


def evaluate(expression: str) -> tuple[Fraction, list[Fraction], Fraction | None]:
    """The value of an arithmetic expression, its numbers from left to right, and the value after its equals sign.

    Raises:
        UnreadableExpressionError: it is not arithmetic, or longer than 500 characters.
        ZeroDivisionError: it divides by zero.
    """
    numbers: list[Fraction] = []

    def number(value: Fraction) -> Fraction:
        numbers.append(value)
        return value

    value, stated = read(expression, number)
    if stated is None:
        return value, numbers, None
    if not _NUMBER.fullmatch(stated := stated.strip().removesuffix(".")):
        raise UnreadableExpressionError
    return value, numbers, Fraction(stated)


def read_task(gold: Any) -> tuple[list[Fraction], Fraction] | None:
    """The numbers and the target of a gold answer; None where it has another format."""
    gold = read_json(gold)
    if not isinstance(gold, Mapping) or not isinstance(gold.get("numbers"), list | tuple):
        return None
    values = [*gold["numbers"], gold.get("target")]
    plain = (isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if len(values) < 2 or not all(plain) or not all(_NUMBER.fullmatch(str(value)) for value in values):
        return None
    *numbers, target = (Fraction(str(value)) for value in values)
    return numbers, target


def modes(gold: Any) -> Mapping[str, float] | None:
    """Every right answer of a problem by its canonical form (`expressions.canonical`), with its chance.

    That is the probability of a uniformly random expression: the numbers in a random order, in a random binary tree,
    with a random operator of the four at each node.

    Args:
        gold: see `read_task`.

    Returns:
        None where it cannot be read, or has more than `MOST_NUMBERS` numbers.
    """
    task = read_task(gold)
    if task is None or len(task[0]) > MOST_NUMBERS:
        return None
    return all_modes(tuple(sorted(task[0])), task[1])


@lru_cache(maxsize=4096)
def all_modes(numbers: tuple[Fraction, ...], target: Fraction) -> Mapping[str, float]:
    """As `modes`, of at most `MOST_NUMBERS` numbers."""
    shapes = _shapes(len(numbers))
    values = shapes.values(numbers)
    ways = shapes.ways(values) if 0 in values else shapes.all_ways
    chances: Counter[str] = Counter()
    for at, sign, mode in _right(shapes, values, numbers, target):
        chances[mode] += ways[at][0 if sign > 0 else 1]
    return {mode: count / shapes.total for mode, count in sorted(chances.items())}


@lru_cache(maxsize=1 << 16)
def count_modes(numbers: tuple[int, ...], target: int) -> int:
    """How many different right answers a problem has. Problems of few digits are drawn again and again: cached."""
    exact, shapes = [Fraction(number) for number in numbers], _shapes(len(numbers))
    return len({mode for _, _, mode in _right(shapes, shapes.values(exact), exact, Fraction(target))})


def _right(
    shapes: _Shapes, values: Sequence[int | None], numbers: Sequence[Fraction], target: Fraction
) -> Iterator[tuple[int, int, str]]:
    """The expressions of all numbers that reach the target, or its negative: place, sign, and mode."""
    if any(number < 0 for number in numbers):
        return  # an expression has signs before numbers, but no negative ones
    aim = _remainder(target)
    for at in shapes.last:
        for sign in (1, -1):
            if values[at] == sign * aim % _PRIME and shapes.build(at, numbers) == sign * target:
                form = shapes.build(at, [Form.of(number) for number in numbers])
                yield at, sign, str(form if sign > 0 else -form)


@dataclass(frozen=True, slots=True)
class _Join:
    """A way to make an expression: the operator, the places of the parts around it, and its own place."""

    operator: str
    left: int
    right: int
    at: int
    turned: bool
    """Whether it makes the negative of what is kept in that place."""


@dataclass(slots=True)
class _Shapes:
    """All expressions of so many different symbols, up to order, parentheses and sign; parts come first."""

    symbols: dict[int, int]
    """The places of the symbols, by these."""
    joins: list[_Join]
    """Every way to make each of them, parts first."""
    made: list[_Join | None]
    """One way to make each, which divides by zero only where all of them do; None for a symbol."""
    last: range
    """The places of the expressions of all symbols."""
    total: int
    """Binary trees of all symbols, with all orders and operators."""
    all_ways: list[tuple[int, int]]
    """`ways` where nothing divides by zero."""

    def values(self, numbers: Sequence[Fraction]) -> list[int | None]:
        """The value of each expression modulo a large prime, which is exact; None where it divides by zero."""
        found: list[int | None] = []
        for at, join in enumerate(self.made):
            if join is None:
                found.append(_remainder(numbers[self.symbols[at]]))
                continue
            left, right = found[join.left], found[join.right]
            if left is None or right is None or (join.operator == "/" and not right):
                found.append(None)
            elif join.operator == "/":
                found.append(left * pow(right, -1, _PRIME) % _PRIME)
            else:
                found.append(_APPLY[join.operator](left, right) % _PRIME)
        return found

    def ways(self, values: Sequence[int | None]) -> list[tuple[int, int]]:
        """How many binary trees, with an operator at each node, are each expression, and how many its negative; without
        those that divide by zero."""
        found = [(1, 0) if join is None else (0, 0) for join in self.made]
        for join in self.joins:
            if join.operator == "/" and values[join.right] == 0:
                continue
            (p, m), (q, n) = found[join.left], found[join.right]
            alike, unlike = p * q + m * n, p * n + m * q
            if join.operator == "+":  # a+b, b+a, a-(-b), b-(-a); negative: (-a)+(-b), (-b)+(-a), (-a)-b, (-b)-a
                plus, minus = 2 * p * q + unlike, 2 * m * n + unlike
            elif join.operator == "-":
                plus, minus = 2 * p * n + alike, 2 * m * q + alike
            else:
                both = 2 if join.operator == "*" else 1  # orders of the parts
                plus, minus = both * alike, both * unlike
            same, negative = found[join.at]
            found[join.at] = (same + minus, negative + plus) if join.turned else (same + plus, negative + minus)
        return found

    def build(self, at: int, numbers: Sequence[T]) -> T:
        """One of the expressions, of these numbers or forms."""
        join = self.made[at]
        if join is None:
            return numbers[self.symbols[at]]
        made: T = _APPLY[join.operator](self.build(join.left, numbers), self.build(join.right, numbers))
        return made


@cache
def _shapes(count: int) -> _Shapes:
    """By dynamic programming over the subsets of the symbols."""
    forms: list[Form] = []
    total = math.factorial(2 * count - 2) // math.factorial(count - 1) * 4 ** (count - 1)
    shapes = _Shapes({}, [], [], range(0), total, [])
    places: dict[int, range] = {}
    for subset in sorted(range(1, 1 << count), key=int.bit_count):
        first, known = len(forms), dict[str, int]()
        if subset.bit_count() == 1:
            shapes.symbols[first] = subset.bit_length() - 1
            forms.append(Form.of(Fraction(subset.bit_length())))
            shapes.made.append(None)
        halves = [(one, subset ^ one) for one in range(1, subset) if one & subset == one and one < subset ^ one]
        pairs = [pair for one, other in halves for pair in product(places[one], places[other])]
        for operator, left, right in [way for a, b in pairs for way in (*((o, a, b) for o in "+-*/"), ("/", b, a))]:
            form = _APPLY[operator](forms[left], forms[right])
            at = known.setdefault(form.text, len(forms))
            join = _Join(operator, left, right, at, at < len(forms) and form.sign != forms[at].sign)
            if at == len(forms):
                forms.append(form)
                shapes.made.append(join)
            elif _inverts(shapes.made[at], forms) and not _inverts(join, forms) and not join.turned:
                shapes.made[at] = join
            shapes.joins.append(join)
        places[subset] = range(first, len(forms))
    shapes.last = places[(1 << count) - 1]
    shapes.all_ways = shapes.ways([None] * len(forms))
    return shapes


def _inverts(join: _Join | None, forms: Sequence[Form]) -> bool:
    """Whether it divides by a quotient, whose divisor then becomes a factor, which may be zero."""
    return join is not None and join.operator == "/" and forms[join.right].divided


def _remainder(number: Fraction) -> int:
    return number.numerator * pow(number.denominator, -1, _PRIME) % _PRIME
