"""Places at which two expressions are compared: values of their variables, drawn per problem.

Polynomials, quotients or sines that differ do so almost everywhere, so a few random places tell. Functions with pieces
(floor, absolute value, minimum, mod, gcd) or with a limited domain (roots, logarithms) may agree on a piece: their
places lie on the breakpoints of either side, in every cell between these, and far away. The draw is seeded with the
expressions: reproducible, but not known beforehand.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from random import Random
from typing import NamedTuple

from covey.answers.maths.arithmetic import NoValueError, as_fraction, is_real
from covey.answers.maths.evaluation import evaluate
from covey.answers.maths.expression import Node, variables

Place = dict[str, Fraction]

_STEPS = tuple(map(Fraction, range(-2, 4)))
_ZERO = (Fraction(0),)
_ENDS: dict[str, tuple[Fraction, ...]] = dict.fromkeys(
    ("asin", "acos", "asec", "acsc", "acosh", "atanh"), (Fraction(-1), Fraction(1))
)
_ENDS |= dict.fromkeys(("root", "ln", "log"), _ZERO)
_WHOLE_NAMES = frozenset("jkmnKMN")  # whole numbers, if anything is rounded
_FEW = ((1, 4), (1, 4), (-3, 3), (-9, 0), (100, 300))
_FAR = ((0, 1), (1, 5), (10, 90), (200, 900), (2000, 9000))
_MOST_CUTS = 24
_NEAR = Fraction(1, 2**100)


class Break(NamedTuple):
    """Where an expression changes its formula, or ends: where `at` is one of the `targets`."""

    at: Node
    targets: tuple[Fraction, ...]
    piece: bool
    """Whether the expression has values on both sides."""

    def cell(self, place: Place) -> int | None:
        """Between which targets a place lies, -1 without a real value; None on one of them."""
        value = _real(self.at, place)
        return -1 if value is None else None if value in self.targets else bisect_left(self.targets, value)


def breaks(node: Node) -> Iterator[Break]:
    """The breakpoints of an expression, those of its parts included."""
    op, args, found = node.op, node.args, list[Break]()
    if op in ("abs", "floor", "ceil"):
        found = [Break(args[0], _ZERO if op == "abs" else _STEPS, True)]
    elif op == "mod":
        found = [Break(Node("div", args), _STEPS, True)]
    elif op in ("max", "min"):
        gaps = [Node("add", (one, Node("neg", (other,)))) for one, other in combinations(args, 2)]
        found = [Break(gap, _ZERO, True) for gap in gaps]
    elif op in ("gcd", "lcm"):
        limits = [int(_real(arg, {}) or 0) for arg in args if not variables(arg)]
        found = [Break(arg, _related(limit), False) for limit in limits for arg in args]
    elif op in _ENDS or (op == "pow" and not _is_whole(args[1])):
        found = [Break(args[0], _ENDS.get(op, _ZERO), False)]
    yield from (one for one in found if variables(one.at))
    for arg in args:
        yield from breaks(arg)


def few(nodes: Sequence[Node]) -> list[Place]:
    """A handful of random places, for expressions without breakpoints; the first two are positive."""
    random, names = _start(nodes)
    return [{name: _between(random, *ends) for name in names} for ends in _FEW]


def many(nodes: Sequence[Node], found: Sequence[Break]) -> list[Place]:
    """Places on both sides of each breakpoint, whole and not, of both signs, small and large."""
    random, names = _start(nodes)
    whole = {name for name in names if name[:1] in _WHOLE_NAMES and any(map(_rounds, nodes))}
    places = []
    for _ in range(40):
        high = 10 ** random.randrange(1, 5)
        ends = random.choice(((-6, 25), (-6, 25), (-high, 0), (0, high)))
        drawn = {name: _between(random, *ends) for name in names}
        places += [{name: Fraction(math.floor(value)) for name, value in drawn.items()}]
        places += [] if whole else [drawn]
    for around in (*few(nodes)[:1], places[-1]):
        base = {name: Fraction(math.floor(value)) if name in whole else value for name, value in around.items()}
        for name in names:
            values = _cells(random, _cuts(found, name, base))
            near = {Fraction(math.floor(value) + step) for value in values for step in (0, 1)}
            places += [{**base, name: value} for value in (sorted(near) if name in whole else values)]
    return list({tuple(place.values()): place for place in places}.values())


def _start(nodes: Sequence[Node]) -> tuple[Random, list[str]]:
    return Random(repr(nodes)), sorted({name for node in nodes for name in variables(node)})


def _between(random: Random, low: Fraction | int, high: Fraction | int) -> Fraction:
    return low + (high - low) * Fraction(random.randrange(1, 9973), 9973)


def _cells(random: Random, cuts: Sequence[Fraction]) -> list[Fraction]:
    """The cuts of a line, two places in each cell between them, and some beyond."""
    inside = [_between(random, *ends) for ends in pairwise(cuts) for _ in range(2)]
    beyond = [_between(random, *ends) for ends in _FAR if cuts]
    return [*cuts, *inside, *(value for step in beyond for value in (cuts[0] - step, cuts[-1] + step))]


def _cuts(found: Sequence[Break], name: str, base: Place) -> list[Fraction]:
    """The values of a variable at which something breaks while the others keep theirs."""
    concerned = [one for one in found if name in variables(one.at)]
    cuts = {root for one in concerned for root in _roots(one.at, one.targets, name, base, Fraction(0))}
    nested = [one for one in concerned if any(breaks(one.at))]  # each of its pieces has roots of its own
    anchors = sorted(cuts, key=abs)[:6] if nested else []
    cuts.update(root for one in nested for at in anchors for root in _roots(one.at, one.targets, name, base, at))
    return sorted(sorted(cuts, key=abs)[:_MOST_CUTS])


def _roots(node: Node, targets: Sequence[Fraction], name: str, base: Place, anchor: Fraction) -> Iterator[Fraction]:
    """Where an expression has these values, if it is linear or quadratic to one side of the anchor, or a product."""
    if targets == _ZERO and node.op in ("mul", "div", "neg", "pow"):
        for part in node.args:
            if name in variables(part):
                yield from _roots(part, targets, name, base, anchor)
    for step in (1, -1):
        found = [_real(node, {**base, name: anchor + step * k}) for k in range(1, 5)]
        zero, one, two, three = (value or Fraction(0) for value in found)
        square, slope = (two - 2 * one + zero) / 2, 2 * one - (3 * zero + two) / 2
        noise = _NEAR * (1 + abs(three))
        if None in found or abs(three - 3 * two + 3 * one - zero) > noise:
            continue
        for gap in (zero - target for target in targets):
            if abs(square) <= noise:
                times = [-gap / slope] if slope else []
            else:
                root = math.isqrt(max(0, int((slope * slope - 4 * square * gap) * 10**12))) * Fraction(1, 10**6)
                times = [(-slope + sign * root) / (2 * square) for sign in (-1, 1)]
            yield from ((anchor + step * (1 + k)).limit_denominator(10**9) for k in times)


def _real(node: Node, place: Place) -> Fraction | None:
    try:
        value = evaluate(node, place)
    except NoValueError:
        return None
    return as_fraction(value) if is_real(value) else None


def _related(number: int) -> tuple[Fraction, ...]:
    """Divisors of a number, the largest ones first among them, and multiples of it."""
    small = [k for k in range(1, min(math.isqrt(abs(number)) + 1, 200)) if number % k == 0][:6]
    return tuple(map(Fraction, sorted({*small, *(number // k for k in small), *(number * k for k in (2, 3, 5))})))


def _is_whole(node: Node) -> bool:
    value = node.args[0].value if node.op == "neg" else node.value
    return isinstance(value, Fraction) and value.denominator == 1


def _rounds(node: Node) -> bool:
    return node.op in ("floor", "ceil", "mod", "gcd", "lcm") or any(map(_rounds, node.args))
