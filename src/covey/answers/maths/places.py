"""Places at which two expressions are compared: values of their variables, drawn per problem.

Two polynomials, quotients or sines that differ do so almost everywhere, so a few random places tell. Functions with
pieces (floor, absolute value, minimum, mod, gcd) or with a limited domain (roots, logarithms) may agree on a whole piece.
Their places lie in every cell between the breakpoints of either side, on these, and far away. The draw is seeded with
the expressions: reproducible, but not known beforehand.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from random import Random

from covey.answers.maths.arithmetic import NoValueError, as_fraction, is_real
from covey.answers.maths.evaluation import evaluate
from covey.answers.maths.expression import Node, variables

Place = dict[str, Fraction]

_STEPS = tuple(map(Fraction, range(-2, 4)))
_ZERO = (Fraction(0),)
_UNIT = (Fraction(-1), Fraction(1))
_LOGARITHMS = frozenset(("root", "ln", "log"))
_ARCS = frozenset(("asin", "acos", "asec", "acsc", "acosh", "atanh"))
_OF_WHOLE = frozenset(("floor", "ceil", "mod", "gcd", "lcm"))
_WHOLE_NAMES = frozenset("jkmnKMN")
_MOST_CUTS = 24
_JOINT = 40  # places that differ in all of several variables
_NEAR = Fraction(1, 2**100)


@dataclass(frozen=True, slots=True)
class Break:
    """Where an expression changes its formula, or ends: where `at` is one of the `targets`."""

    at: Node
    targets: tuple[Fraction, ...]
    piece: bool
    """Whether the expression has values on both sides."""

    def touches(self, place: Place) -> bool:
        """Whether a place is a breakpoint."""
        return _real(self.at, place) in self.targets

    def cell(self, place: Place) -> int | None:
        """Between which targets a place lies; None on one of them, or without a value."""
        value = _real(self.at, place)
        return None if value is None or value in self.targets else bisect_left(self.targets, value)


def breaks(node: Node) -> Iterator[Break]:
    """The breakpoints of an expression, those of its parts included."""
    args, found = node.args, list[Break]()
    if node.op == "abs":
        found = [Break(args[0], _ZERO, True)]
    elif node.op in ("floor", "ceil"):
        found = [Break(args[0], _STEPS, True)]
    elif node.op == "mod":
        found = [Break(Node("div", args), _STEPS, True)]
    elif node.op in ("max", "min"):
        pairs = combinations(args, 2)
        found = [Break(Node("add", (one, Node("neg", (other,)))), _ZERO, True) for one, other in pairs]
    elif node.op in ("gcd", "lcm"):
        limits = [int(arg.value) for arg in args if isinstance(arg.value, Fraction) and arg.value]
        found = [Break(arg, _divisors(limit), False) for limit in limits or [12] for arg in args]
    elif node.op in _LOGARITHMS or (node.op == "pow" and not _is_whole(args[1])):
        found = [Break(args[0], _ZERO, False)]
    elif node.op in _ARCS:
        found = [Break(args[0], _UNIT, False)]
    yield from (one for one in found if variables(one.at))
    for arg in args:
        yield from breaks(arg)


def few(nodes: Sequence[Node]) -> list[Place]:
    """A handful of random places, for expressions without breakpoints."""
    random, names = _start(nodes)
    drawn = [{name: _fraction(random, 1, 4) for name in names} for _ in range(2)]
    drawn += [{name: random.choice((-1, 1)) * _fraction(random, low, high) for name in names} for low, high in _FAR]
    return drawn


_FAR = ((0, 3), (2, 9), (100, 300))


def many(nodes: Sequence[Node], found: Sequence[Break]) -> list[Place]:
    """Places on both sides of each breakpoint, whole and not, of both signs, small and large."""
    random, names = _start(nodes)
    whole = {name for name in names if name[:1] in _WHOLE_NAMES and any(map(_rounds, nodes))}
    ladders = {name: _ladder(random, name in whole) for name in names}
    if len(names) == 1:
        places: list[Place] = [{names[0]: value} for value in ladders[names[0]]]
    else:
        places = [{name: random.choice(ladders[name]) for name in names} for _ in range(_JOINT)]
    for around in (few(nodes)[0], places[-1]):
        base = {name: Fraction(math.floor(value)) if name in whole else value for name, value in around.items()}
        for name in names:
            cuts = _cuts(found, name, base)
            places += [{**base, name: value} for value in _cells(random, cuts, name in whole)]
    return list({tuple(place.values()): place for place in places}.values())


def _start(nodes: Sequence[Node]) -> tuple[Random, list[str]]:
    return Random(repr(nodes)), sorted({name for node in nodes for name in variables(node)})


def _fraction(random: Random, low: int, high: int) -> Fraction:
    """A fraction between two whole numbers, which is no round number."""
    return low + (high - low) * Fraction(random.randrange(1, 997), 997)


def _ladder(random: Random, whole: bool) -> list[Fraction]:
    far = [sign * random.randrange(10**k, 10 ** (k + 1)) for k in (1, 2, 3, 4) for sign in (-1, 1)]
    found = [Fraction(value) for value in (*range(-6, 25), 27, 36, 49, *far)]
    if not whole:
        found += [low + _fraction(random, 0, 1) for low in (-30, -8, -3, -2, -1, 0, 1, 2, 3, 4, 7, 12, 60)]
        found += [Fraction(value) + _fraction(random, 0, 1) for value in far]
    return found


def _cells(random: Random, cuts: Sequence[Fraction], whole: bool) -> Iterator[Fraction]:
    """The cuts of a line, two places in each cell between them, and some beyond."""
    inside = [low + (high - low) * _fraction(random, k, k + 1) / 2 for low, high in pairwise(cuts) for k in (0, 1)]
    beyond = [_fraction(random, low, high) for low, high in ((0, 1), (1, 5), (10, 90), (200, 900), (2000, 9000))]
    values = [*cuts, *inside]
    values += [value for step in beyond for value in (cuts[0] - step, cuts[-1] + step)] if cuts else []
    if whole:
        near = {math.floor(value) + step for value in cuts for step in (-1, 0, 1, 2)}
        values = [*map(Fraction, sorted(near | {math.floor(value) for value in values}))]
    yield from dict.fromkeys(values)


def _cuts(found: Sequence[Break], name: str, base: Place) -> list[Fraction]:
    """The values of a variable at which something breaks while the others keep theirs."""
    cuts: set[Fraction] = set()
    for one in found:
        if name in variables(one.at):
            cuts.update(_roots(one.at, one.targets, name, base, Fraction(0)))
    anchors = sorted(cuts, key=abs)[:6]
    for one in found:  # of a broken function each piece has its own roots
        if name in variables(one.at) and any(breaks(one.at)):
            cuts.update(root for anchor in anchors for root in _roots(one.at, one.targets, name, base, anchor))
    return sorted(sorted(cuts, key=abs)[:_MOST_CUTS])


def _roots(
    node: Node, targets: Sequence[Fraction], name: str, base: Mapping[str, Fraction], anchor: Fraction
) -> Iterator[Fraction]:
    """Where an expression has these values, if it is linear or quadratic to one side of the anchor, or a product."""
    if targets == _ZERO and node.op in ("mul", "div", "neg", "pow"):
        for part in node.args:
            if name in variables(part):
                yield from _roots(part, targets, name, base, anchor)
    for step in (1, -1):
        found = [_real(node, {**base, name: anchor + step * k}) for k in range(1, 5)]
        values = [value for value in found if value is not None]
        if len(values) < len(found):
            continue
        zero, one, two, three = values
        square, third = (two - 2 * one + zero) / 2, three - 3 * two + 3 * one - zero
        slope = one - zero - square
        if abs(third) > _NEAR * (1 + abs(three)):
            continue
        for target in targets:
            gap = zero - target
            if abs(square) <= _NEAR * (1 + abs(three)):
                times = [-gap / slope] if slope else []
            else:
                inside = slope * slope - 4 * square * gap
                root = Fraction(math.isqrt(int(inside * 10**12)), 10**6) if inside >= 0 else None
                times = [] if root is None else [(-slope + sign * root) / (2 * square) for sign in (-1, 1)]
            yield from ((anchor + step * (1 + k)).limit_denominator(10**9) for k in times)


def _real(node: Node, place: Place) -> Fraction | None:
    try:
        value = evaluate(node, place)
    except NoValueError:
        return None
    return as_fraction(value) if is_real(value) else None


def _divisors(number: int) -> tuple[Fraction, ...]:
    """Some divisors of a number, the largest among them, and multiples of it."""
    number = abs(number)
    small = [k for k in range(1, min(math.isqrt(number) + 1, 200)) if number % k == 0]
    return tuple(map(Fraction, sorted({*small[:6], *(number // k for k in small[:6]), *(number * k for k in (2, 3, 5))})))


def _is_whole(node: Node) -> bool:
    if node.op == "neg":
        return _is_whole(node.args[0])
    return isinstance(node.value, Fraction) and node.value.denominator == 1


def _rounds(node: Node) -> bool:
    return node.op in _OF_WHOLE or any(map(_rounds, node.args))
