"""Places at which two expressions are compared: values of their variables, drawn per problem.

Polynomials, quotients or sines that differ do so almost everywhere, so a few random places tell. Functions with pieces
(floor, absolute value, minimum, mod, gcd) or with a limited domain (roots, logarithms) may agree on a piece: their
places lie on the breakpoints of either side, in every cell between these, and far away. The draw is seeded with the
expressions: reproducible, but not known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from random import Random

from covey.answers.maths.arithmetic import as_fraction, is_real
from covey.answers.maths.evaluation import values_at
from covey.answers.maths.expression import Node, is_whole, unsigned, variables

Place = dict[str, Fraction]

PIECES = frozenset(("abs", "floor", "ceil", "mod", "max", "min"))
_ROUNDING = frozenset(("floor", "ceil", "mod", "gcd", "lcm"))
_LIMITED = frozenset(("root", "ln", "log", "asin", "acos", "asec", "acsc", "acosh", "atanh"))
_WHOLE_NAMES = frozenset("jkmnKMN")  # whole numbers, if anything is rounded
_FEW = ((1, 4), (1, 4), (-3, 3), (-9, 0), (100, 300))
_MANY = ((-6, 25), (-10, 0), (0, 100), (-100, 0), (0, 1000), (-1000, 0), (0, 10**4), (-(10**4), 0))
_FAR = ((0, 1), (1, 9), (10, 900))
_STEPS = range(-1, 2)
_STARTS = tuple(map(Fraction, (-1000, 0, 1000)))
_MOST_CUTS = 40
_MOST_PASSES = 32
_FARTHEST = 10**6


def uses(node: Node, operations: Collection[str]) -> bool:
    """Whether one of these operations occurs in an expression."""
    return node.op in operations or any(uses(part, operations) for part in node.args)


def breaks(node: Node) -> Iterator[Node]:
    """What has small whole values where an expression changes its formula, or ends; the inner ones first."""
    for arg in node.args:
        yield from breaks(arg)
    op, args, found = node.op, node.args, list[Node]()
    if op in ("abs", "floor", "ceil") or op in _LIMITED or (op == "pow" and not is_whole(unsigned(args[1]))):
        found = [args[0]]
    elif op == "mod":
        found = [Node("div", args)]
    elif op in ("max", "min"):
        found = [Node("add", (one, Node("neg", (other,)))) for one, other in combinations(args, 2)]
    elif op in ("gcd", "lcm"):
        found = [Node("div", (one, other)) for one in args for other in args if not variables(other)]
    yield from (one for one in found if variables(one))


def few(nodes: Sequence[Node]) -> list[Place]:
    """A handful of random places, for expressions without breakpoints; the first two are positive."""
    random, names = _start(nodes)
    return [{name: _between(random, *ends) for name in names} for ends in _FEW]


def many(nodes: Sequence[Node], found: Sequence[Node]) -> tuple[list[Place], list[Place]]:
    """Places on both sides of each breakpoint, whole and not, of both signs, small and large; and those on one."""
    random, names = _start(nodes)
    whole = {name for name in names if name[:1] in _WHOLE_NAMES and any(uses(node, _ROUNDING) for node in nodes)}
    drawn = [{name: _between(random, *ends) for name in names} for ends in _MANY * 3]
    small = [{name: Fraction(random.randrange(7)) for name in names} for _ in range(16)]  # for `n!` and `n/k`
    beside, on = [*small, *drawn, *(_rounded(place, names) for place in drawn)], list[Place]()
    for base in (few(nodes)[0], drawn[-1])[: 2 if len(names) == 2 else 1]:
        for name in names:
            cuts = _cuts(found, name, _rounded(base, whole))
            on += [{**base, name: value} for value in cuts]
            beside += [{**base, name: value} for value in _cells(random, cuts)]
    return _distinct(beside, whole), _distinct(on, whole)


def _distinct(places: Sequence[Place], whole: Collection[str]) -> list[Place]:
    rounded = [_rounded(place, whole) for place in places]
    return [*{tuple(place.values()): place for place in rounded}.values()]  # one that is drawn twice tells no more


def _rounded(place: Place, names: Collection[str]) -> Place:
    return {name: Fraction(math.floor(value)) if name in names else value for name, value in place.items()}


def _start(nodes: Sequence[Node]) -> tuple[Random, list[str]]:
    return Random(repr(nodes)), sorted({name for node in nodes for name in variables(node)})


def _between(random: Random, low: Fraction | int, high: Fraction | int) -> Fraction:
    return low + (high - low) * Fraction(random.randrange(1, 9973), 9973)


def _cells(random: Random, cuts: Sequence[Fraction]) -> list[Fraction]:
    """Two places in each cell between the cuts of a line, and some beyond."""
    inside = [_between(random, *ends) for ends in pairwise(cuts) for _ in range(2)]
    beyond = [_between(random, *ends) for ends in _FAR if cuts]
    return [*inside, *(value for step in beyond for value in (cuts[0] - step, cuts[-1] + step))]


def _cuts(found: Sequence[Node], name: str, base: Place) -> list[Fraction]:
    """The values of a variable at which something breaks while the others keep theirs."""
    cuts: set[Fraction] = set()
    for node in found:
        if name in variables(node):
            starts = (*_STARTS, *sorted(cuts, key=abs)[:6])  # each piece of an inner one has roots of its own
            cuts.update(root for start in starts for root in _roots(node, name, base, start))
    return sorted(sorted(cuts, key=abs)[:_MOST_CUTS])


def _roots(node: Node, name: str, base: Place, start: Fraction) -> Iterator[Fraction]:
    """Where an expression has small whole values, by the secant method."""
    first = _real(node, {**base, name: start}), _real(node, {**base, name: start + 1})
    for step in _STEPS:
        (before, value), (one, other) = first, (start, start + 1)
        for _ in range(_MOST_PASSES if value and value.denominator < 2**64 else 3):  # an inexact value costs far more
            if value == step or one == other:
                yield other
            if before is None or value is None or value in (before, step) or abs(other) > _FARTHEST:
                break
            nearer = other - (value - step) * (other - one) / (value - before)
            one, other = other, nearer.limit_denominator(10**6)
            before, value = value, _real(node, {**base, name: other})


def _real(node: Node, place: Place) -> Fraction | None:
    return next((as_fraction(value) for value in values_at((node,), place, False) if is_real(value)), None)
