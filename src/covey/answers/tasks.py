"""Tasks whose right answers are all known, countdown and graph colouring: reading an answer, its mode, and all modes.

Two arithmetic expressions are one answer if one becomes the other by changing the order of terms or factors, by moving
parentheses that make no difference, and by moving signs: `3+5`, `5+3` and `(5)+3` are one; so are `8-(3-2)` and
`8-3+2`, `6/(3/2)` and `6*2/3`, `(4-1)*(2-5)` and `(1-4)*(5-2)`. Nothing is multiplied out or worked out: `2*1` and
`2/1` stay two answers, and so do `2*3+2*4` and `2*(3+4)`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache, lru_cache
from itertools import product
from operator import add, mul, sub, truediv
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar

from covey.answers.maths.expression import Node, parse

_DECIMAL = r"\d{1,18}(?:\.\d{1,18})?"
_SIGNED_DECIMAL = re.compile(rf"-?{_DECIMAL}", re.ASCII)
_ARITHMETIC = re.compile(  # numbers between operators: neither a product without its sign nor a power
    rf"(?:[-+(\s]{{0,100}}{_DECIMAL}(?![\d.])[)\s]*(?:[-+*/](?=.)|$))+", re.ASCII | re.DOTALL
)
_SIGNS = str.maketrans("\u00d7\u00b7\u22c5\u2217\u00f7\u2215\u2212\u2013", "****//--")
_LATEX = {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\left": "", r"\right": "", "$": ""}


class UnreadableExpressionError(ValueError):
    """The text is not arithmetic, or is too long."""


class Arithmetic(Protocol):
    """What an expression is read into: numbers, or canonical forms."""

    def __add__(self, other: Self, /) -> Self: ...
    def __sub__(self, other: Self, /) -> Self: ...
    def __mul__(self, other: Self, /) -> Self: ...
    def __truediv__(self, other: Self, /) -> Self: ...
    def __neg__(self) -> Self: ...


T = TypeVar("T", bound=Arithmetic)


def read_expression(expression: str, number: Callable[[Fraction], T]) -> tuple[T, str | None]:
    """An arithmetic expression, and the text after its equals sign; None without one.

    Args:
        expression: numbers, + - * / (or × ÷ −, or LaTeX's), signs and parentheses.
        number: what a number becomes, which decides what the expression is read into: `Fraction` gives its value, and
            `Form.of` its canonical form.

    Raises:
        UnreadableExpressionError: it is not arithmetic, or longer than 500 characters.
        ZeroDivisionError: it divides by zero; only where values are computed.
    """
    plain = expression.translate(_SIGNS)
    for mark, meant in _LATEX.items():
        plain = plain.replace(mark, meant)
    formula, equals, right = plain.strip().partition("=")
    node = parse(formula.rstrip()) if _ARITHMETIC.fullmatch(formula) else None
    if node is None:
        raise UnreadableExpressionError
    return _folded(node, number), right if equals else None


def _folded(node: Node, number: Callable[[Fraction], T]) -> T:
    if isinstance(node.value, Fraction):
        return number(node.value)
    found, *others = (_folded(part, number) for part in node.args)
    for other in others:
        found = found + other if node.op == "add" else found * other if node.op == "mul" else found / other
    return -found if node.op == "neg" else found


def canonical(expression: str) -> str:
    """A text that is the same for two expressions exactly when they are one answer; itself such an expression.

    Args:
        expression: as in `read_expression`; what follows an equals sign is left out.

    Raises:
        UnreadableExpressionError: it is not arithmetic.
    """
    return str(read_expression(expression, Form.of)[0])


_EXACT = Context(prec=80)  # of numbers with up to 18 digits before and after the point
_NUMBER, _SUM, _PRODUCT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Form:
    """The canonical form of an expression: equal ones are one answer.

    A sum is flat, and so is a product; no number, and no sum or product within a product, has a sign of its own, since
    signs are pulled out and multiplied. Where turning all its signs leaves a form as it is (`0`, `3-3`, `2*(3-3)`), it
    has none.
    """

    kind: int
    text: str
    """Of the form without its sign; equal texts are equal forms."""
    sign: int = 1
    parts: tuple[tuple[Form, ...], tuple[Form, ...]] = ((), ())
    """A sum's terms, with their signs, come first; a product's factors above the line, and those below."""
    even: bool = False
    """Whether it is its own negative."""

    @classmethod
    def of(cls, number: Fraction) -> Form:
        """A number, which is not negative."""
        exact = _EXACT.divide(Decimal(number.numerator), Decimal(number.denominator))
        return cls(_NUMBER, f"{exact.normalize(_EXACT):f}", even=number == 0)

    @property
    def divided(self) -> bool:
        """Whether it is a quotient."""
        return self.kind == _PRODUCT and bool(self.parts[1])

    def __neg__(self) -> Form:
        return self if self.even else Form(self.kind, self.text, -self.sign, self.parts, self.even)

    def __add__(self, other: Form) -> Form:
        return _sum([*self._terms(), *other._terms()])

    def __sub__(self, other: Form) -> Form:
        return self + -other

    def __mul__(self, other: Form) -> Form:
        (above, below), (more, less) = self._factors(), other._factors()
        return _product(self.sign * other.sign, (*above, *more), (*below, *less))

    def __truediv__(self, other: Form) -> Form:
        (above, below), (less, more) = self._factors(), other._factors()
        return _product(self.sign * other.sign, (*above, *more), (*below, *less))

    def __str__(self) -> str:
        if self.kind == _SUM:
            return _sum_text(sorted(self._terms(), key=_order))
        return self.text if self.sign > 0 else f"-{self.text}"

    def _terms(self) -> list[Form]:
        if self.kind != _SUM:
            return [self]
        return [term if self.sign > 0 else -term for term in self.parts[0]]

    def _factors(self) -> tuple[tuple[Form, ...], tuple[Form, ...]]:
        return self.parts if self.kind == _PRODUCT else ((self if self.sign > 0 else -self,), ())


def _sum(terms: Iterable[Form]) -> Form:
    """The sum of terms that are no sums."""
    plain = sorted(terms, key=_order)
    mirrored = sorted((-term for term in plain), key=_order)
    texts, other = _sum_text(plain), _sum_text(mirrored)
    even = texts == other
    if not even and ([-t.sign for t in plain], texts) > ([-t.sign for t in mirrored], other):
        return Form(_SUM, other, -1, (tuple(mirrored), ()))
    return Form(_SUM, texts, 1, (tuple(plain), ()), even)


def _product(sign: int, above: Iterable[Form], below: Iterable[Form]) -> Form:
    """The product of factors without signs that are no products."""
    parts = tuple(sorted(above, key=_order)), tuple(sorted(below, key=_order))
    text = "*".join(map(_factor, parts[0])) + "".join(f"/{_factor(one)}" for one in parts[1])
    even = any(factor.even for factor in (*parts[0], *parts[1]))
    return Form(_PRODUCT, text, 1 if even else sign, parts, even)


def _order(form: Form) -> tuple[int, int, str]:
    """Positive terms first; numbers by size, then sums and products by length."""
    return -form.sign, len(form.text), form.text


def _factor(form: Form) -> str:
    return f"({form.text})" if form.kind == _SUM else form.text


def _sum_text(terms: Iterable[Form]) -> str:
    return "".join(("+" if term.sign > 0 else "-") + term.text for term in terms).removeprefix("+")


def read_json(gold: Any) -> Any:
    """What JSON text stands for, None for other text; anything that is no text stays as it is."""
    if not isinstance(gold, str):
        return gold
    try:
        return json.loads(gold)
    except (ValueError, RecursionError):  # the latter: nested thousands deep
        return None


MOST_NUMBERS = 5
"""Up to so many numbers all right answers of a problem are enumerated: five make 27,142 expressions that differ."""

_APPLY: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType({"+": add, "-": sub, "*": mul, "/": truediv})
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

    value, stated = read_expression(expression, number)
    if stated is None:
        return value, numbers, None
    if not _SIGNED_DECIMAL.fullmatch(stated := stated.strip().removesuffix(".")):
        raise UnreadableExpressionError
    return value, numbers, Fraction(stated)


def read_countdown(gold: Any) -> tuple[list[Fraction], Fraction] | None:
    """The numbers and the target of a gold answer of countdown; None where it has another format."""
    gold = read_json(gold)
    if not isinstance(gold, Mapping) or not isinstance(gold.get("numbers"), list | tuple):
        return None
    values = [*gold["numbers"], gold.get("target")]
    plain = (isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if len(values) < 2 or not all(plain) or not all(_SIGNED_DECIMAL.fullmatch(str(value)) for value in values):
        return None
    *numbers, target = (Fraction(str(value)) for value in values)
    return numbers, target


def countdown_modes(gold: Any) -> Mapping[str, float] | None:
    """Every right answer of a countdown problem by its canonical form (see `canonical`), with its chance.

    That is the probability of a uniformly random expression: the numbers in a random order, in a random binary tree,
    with a random operator of the four at each node.

    Args:
        gold: see `read_countdown`.

    Returns:
        None where it cannot be read, or has more than `MOST_NUMBERS` numbers.
    """
    task = read_countdown(gold)
    if task is None or len(task[0]) > MOST_NUMBERS:
        return None
    return all_countdown_modes(tuple(sorted(task[0])), task[1])


@lru_cache(maxsize=4096)
def all_countdown_modes(numbers: tuple[Fraction, ...], target: Fraction) -> Mapping[str, float]:
    """As `countdown_modes`, of at most `MOST_NUMBERS` numbers."""
    shapes = _shapes(len(numbers))
    values = shapes.values(numbers)
    ways = shapes.ways(values) if 0 in values else shapes.all_ways
    chances: Counter[str] = Counter()
    for at, sign, mode in _right(shapes, values, numbers, target):
        chances[mode] += ways[at][0 if sign > 0 else 1]
    return {mode: count / shapes.total for mode, count in sorted(chances.items())}


@lru_cache(maxsize=1 << 16)
def count_countdown_modes(numbers: tuple[int, ...], target: int) -> int:
    """How many different right answers a countdown problem has. Those of few digits are drawn again and again."""
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


COLORS = ("red", "green", "blue")
MOST_VERTICES = 12
"""Most vertices of a problem."""

_PAIR = re.compile(r"([A-Za-z])\s*[=:]\s*([A-Za-z]+)[\s,;.]*")
_SHORT = {color[0]: color for color in COLORS}
_LONGEST = 500  # characters of an answer


class UnreadableColoringError(ValueError):
    """The text is no list of vertices with colours."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of which some vertices have a colour."""

    vertices: str
    """One letter for each."""
    edges: tuple[str, ...]
    """The two vertices of each, in the order of `vertices`."""
    given: tuple[str | None, ...]
    """The colour of each vertex; None for those that are asked for."""

    @property
    def hidden(self) -> str:
        """The vertices that are asked for."""
        return "".join(name for name, color in zip(self.vertices, self.given, strict=True) if color is None)

    def neighbours(self, name: str) -> list[str]:
        """The vertices that edges join to this one, in order."""
        return [edge.replace(name, "") for edge in self.edges if name in edge]

    @property
    def chance(self) -> float:
        """The probability of one right answer when each asked vertex gets a uniformly random colour."""
        return float(1 / len(COLORS) ** len(self.hidden))


def read_graph(gold: Any) -> Graph | None:
    """The graph of a gold answer, None where it has another format.

    It is JSON text, or what it stands for, such as `{"vertices": "ABC", "edges": ["AB", "BC"], "given": {"A": "red"}}`:
    vertices are single letters, and an edge is the two that it joins.
    """
    gold = read_json(gold)
    if not isinstance(gold, Mapping):
        return None
    vertices, edges, given = (gold.get(key) for key in ("vertices", "edges", "given"))
    if not isinstance(vertices, str) or not isinstance(edges, list | tuple) or not isinstance(given, Mapping):
        return None
    named = len(set(vertices)) == len(vertices) <= MOST_VERTICES and vertices.isalpha() and vertices.isupper()
    joined = all(isinstance(edge, str) and len(edge) == 2 == len(set(edge) & set(vertices)) for edge in edges)
    # With data from a table, every row has the keys of all rows, with null for those that it lacks.
    known = {name: color for name, color in given.items() if color is not None}
    if not named or not joined or not set(known) <= set(vertices) or any(one not in COLORS for one in known.values()):
        return None
    ordered = sorted("".join(sorted(edge, key=vertices.index)) for edge in edges)
    return Graph(vertices, tuple(ordered), tuple(known.get(name) for name in vertices))


def read_coloring(answer: str) -> dict[str, str]:
    """The colours that an answer such as `A=red B=green` gives to vertices.

    Signs and cases are free: `a: r, b: g` is the same, with the first letters of the colours.

    Raises:
        UnreadableColoringError: it is anything else, or gives a vertex two colours.
    """
    if len(answer) > _LONGEST:
        raise UnreadableColoringError
    found: dict[str, str] = {}
    position, text = 0, answer.strip()
    while position < len(text):
        pair = _PAIR.match(text, position)
        if pair is None:
            raise UnreadableColoringError
        name, color = pair[1].upper(), _SHORT.get(pair[2].lower(), pair[2].lower())
        if color not in COLORS or found.setdefault(name, color) != color:
            raise UnreadableColoringError
        position = pair.end()
    if not found:
        raise UnreadableColoringError
    return found


def full_coloring(graph: Graph, colors: Mapping[str, str]) -> tuple[str, ...] | None:
    """The colours of all vertices, the given ones among them; None unless the answer names each asked vertex, no other
    but given ones, and these in their colours."""
    full = [colors.get(name, color) for name, color in zip(graph.vertices, graph.given, strict=True)]
    kept = all(color in (None, own) for color, own in zip(graph.given, full, strict=True))
    if not kept or not set(colors) <= set(graph.vertices):
        return None
    plain = tuple(color for color in full if color is not None)
    return plain if len(plain) == len(full) else None


def is_proper(graph: Graph, coloring: Sequence[str]) -> bool:
    """Whether the ends of each edge differ in colour."""
    colors = dict(zip(graph.vertices, coloring, strict=True))
    return all(colors[edge[0]] != colors[edge[1]] for edge in graph.edges)


def mode_of(graph: Graph, coloring: Sequence[str]) -> str:
    """A full colouring as text: `A=red B=green`."""
    return " ".join(f"{name}={color}" for name, color in zip(graph.vertices, coloring, strict=True))


def colorings(graph: Graph) -> list[tuple[str, ...]]:
    """Every proper colouring that keeps the given colours."""
    neighbours = [
        [graph.vertices.index(edge[0]) for edge in graph.edges if edge[1] == name] for name in graph.vertices
    ]  # those that come before it

    def extended(so_far: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        at = len(so_far)
        if at == len(graph.vertices):
            yield so_far
            return
        own = graph.given[at]
        for color in COLORS if own is None else (own,):
            if all(so_far[other] != color for other in neighbours[at]):
                yield from extended((*so_far, color))

    return list(extended(()))


@lru_cache(maxsize=4096)
def all_coloring_modes(graph: Graph) -> Mapping[str, float]:
    """Every right answer (see `mode_of`) with its chance (see `Graph.chance`)."""
    return {mode_of(graph, coloring): graph.chance for coloring in colorings(graph)}


def coloring_modes(gold: Any) -> Mapping[str, float] | None:
    """As `all_coloring_modes`, of a gold answer; None where it cannot be read."""
    graph = read_graph(gold)
    return None if graph is None else all_coloring_modes(graph)


MODES: Mapping[str, Callable[[Any], Mapping[str, float] | None]] = MappingProxyType(
    {"countdown": countdown_modes, "graph_coloring": coloring_modes}
)
"""By grader: from a problem's gold answer to all its modes, each with the probability of a uniformly random well-formed
answer; None where they are not known."""
