"""Whether two expressions are equal: by their values, at several places where they have variables.

An expression without a value (infinite, undefined, too large, a sum or a limit) equals only itself.

Polynomials, quotients or sines that differ do so almost everywhere, so a few random places tell. Functions with pieces
(floor, absolute value, minimum, mod, gcd) or with a limited domain (roots, logarithms) may agree on a piece: their
places lie on the breakpoints of either side, in every cell between these, and far away. The draw is seeded with the
expressions: reproducible, but not known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import combinations, pairwise
from random import Random

from covey.answers.maths.expression import Node, constant, is_whole, parse, unsigned, uses_imaginary_unit, variables
from covey.answers.maths.notation import Number, rounds_to
from covey.answers.maths.value import Value, as_fraction, is_real, is_zero, spend, values_at

Place = dict[str, Fraction]

_ENOUGH = 3  # places with values
_HERE = "here "
_COST_OF_READING = 8.0  # microseconds for a character
Sides = tuple[Node, Node]


def read(text: str) -> Node | None:
    """Parse a tidied text; None if it is not an expression. Raises an `ExhaustedError` if parsing would need more work
    than is left."""
    spend(_COST_OF_READING * len(text))
    return parse(text)


def is_constant(text: str) -> bool:
    """Whether a text is an expression without variables."""
    node = read(text)
    return node is not None and not variables(node)


def expressions_agree(gold: Node, prediction: Node) -> bool:
    """Whether two expressions have the same value wherever they have one, or are the same expression."""
    if gold == prediction:
        return True
    if variables(gold) != variables(prediction):  # even where one cancels, as in `x / x`: that is not an answer
        return False
    gap = _difference(gold, prediction)
    if not variables(gold):
        return any(map(is_zero, values_at((gap,), {}, uses_imaginary_unit(gap))))
    try:
        return all(is_zero(value) for _, (value,) in _at_places((gold, prediction), (gap,)))
    except _UndecidedError:
        with suppress(_UndecidedError):
            return _normal(gold) == _normal(prediction)
        return False


class _UndecidedError(Exception):
    """Too few places tell whether two expressions agree."""


def relations_agree(gold: Sides, prediction: Sides, same_direction: bool | None = None) -> bool:
    """Whether two relations are equivalent: their `left - right` differ by a constant factor.

    Args:
        same_direction: for inequalities, whether both are of the same direction; then the factor must be positive, else
            negative.
    """
    first, second = _difference(*gold), _difference(*prediction)
    if not variables(first) or variables(first) != variables(second):
        return False
    try:
        found = list(_at_places((first, second), (first, second)))
    except _UndecidedError:
        return False
    if any(is_zero(one) != is_zero(other) for _, (one, other) in found):
        return False
    found = [(place, values) for place, values in found if not is_zero(values[0])]
    if len(found) < _ENOUGH:
        return False
    (here, (one, other)), *elsewhere = found
    for there, _ in elsewhere:  # first(there) * second(here) = first(here) * second(there)
        left, right = Node("mul", (first, _renamed(second))), Node("mul", (_renamed(first), second))
        gap = values_at((_difference(left, right),), {**there, **{_HERE + name: here[name] for name in here}}, True)
        if not any(map(is_zero, gap)):
            return False
    return same_direction is None or (is_real(one) and is_real(other) and ((one > 0) == (other > 0)) == same_direction)


def _renamed(node: Node) -> Node:
    """The expression with its variables renamed."""
    if node.op == "variable":
        return Node("variable", value=f"{_HERE}{node.value}")
    return Node(node.op, tuple(map(_renamed, node.args)), node.value)


def matches_decimal(expression: Node, number: Number) -> bool | None:
    """Whether a constant equals a decimal, at the precision in which that was written.

    None where the expression is not constant, or the number is not a decimal.
    """
    if number.places is None or variables(expression):
        return None
    rounded = number.significant >= 3 and number.places > 0 and number.value.denominator > 1
    return any(
        is_zero(gap) or (rounded and is_real(gap) and rounds_to(number.value + as_fraction(gap), number))
        for gap in values_at((_difference(expression, constant(number.value)),), {}, False)
    )


def real_value(text: str) -> Fraction | None:
    """The value of a text that is a real constant, exactly as computed; None where it has none."""
    node = read(text)
    found = () if node is None or variables(node) else values_at((node,), {}, False)
    return next((as_fraction(value) for value in found if is_real(value)), None)


def _difference(left: Node, right: Node) -> Node:
    return Node("add", (left, Node("neg", (right,))))


def _at_places(sides: Sides, nodes: tuple[Node, ...]) -> Iterator[tuple[Place, tuple[Value, ...]]]:
    """Places at which all of these expressions, made of the two sides, have values, with the values.

    Raises:
        _UndecidedError: there are too few of them, or a function with pieces has values where the other side has none.
    """
    imaginary = any(map(uses_imaginary_unit, nodes))
    found = list(dict.fromkeys(at for side in sides for at in _breaks(side)))
    if not found:
        simple = [(place, values) for place in _few_places(sides) if (values := values_at(nodes, place, imaginary))]
        if len(simple) >= _ENOUGH:
            yield from simple
            return
    shared = 0
    beside, on = _many_places(sides, found)
    for place in beside:
        if values := values_at(nodes, place, imaginary):
            shared += 1
            yield place, values
        elif any(_uses(side, _PIECES) and values_at((side,), place, imaginary) for side in sides):
            raise _UndecidedError
    yield from ((place, values) for place in on if (values := values_at(nodes, place, imaginary)))
    if shared < _ENOUGH:
        raise _UndecidedError


def _normal(node: Node) -> Node:
    """The same node for expressions that differ in the order of terms and factors, or in how they write constants,
    quotients, roots and signs."""
    if node.op == "valueless":  # the order of what follows a sum or limit may matter
        raise _UndecidedError
    value = None if variables(node) else next(iter(values_at((node,), {}, False)), None)
    if isinstance(value, Fraction):
        return constant(value)
    op, args = node.op, [_normal(part) for part in node.args]
    if op == "neg":
        op, args = "mul", [constant(-1), *args]
    elif op == "div":
        op, args = "mul", [args[0], _normal(Node("pow", (args[1], constant(-1))))]
    elif op == "root":
        op, args = "pow", [args[0], _normal(Node("div", (constant(1), args[1])))]
    if op in ("add", "mul", "max", "min", "gcd", "lcm"):
        args = sorted((part for arg in args for part in (arg.args if arg.op == op else (arg,))), key=repr)
    return Node(op, tuple(args), node.value)


_PIECES = frozenset(("abs", "floor", "ceil", "mod", "max", "min"))
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


def _uses(node: Node, operations: Collection[str]) -> bool:
    """Whether one of these operations occurs in an expression."""
    return node.op in operations or any(_uses(part, operations) for part in node.args)


def _breaks(node: Node) -> Iterator[Node]:
    """What has small whole values where an expression changes its formula, or ends; the inner ones first."""
    for arg in node.args:
        yield from _breaks(arg)
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


def _few_places(nodes: Sequence[Node]) -> list[Place]:
    """A handful of random places, for expressions without breakpoints; the first two are positive."""
    random, names = _start(nodes)
    return [{name: _between(random, *ends) for name in names} for ends in _FEW]


def _many_places(nodes: Sequence[Node], found: Sequence[Node]) -> tuple[list[Place], list[Place]]:
    """Places on both sides of each breakpoint, whole and not, of both signs, small and large; and those on one."""
    random, names = _start(nodes)
    whole = {name for name in names if name[:1] in _WHOLE_NAMES and any(_uses(node, _ROUNDING) for node in nodes)}
    drawn = [{name: _between(random, *ends) for name in names} for ends in _MANY * 3]
    small = [{name: Fraction(random.randrange(7)) for name in names} for _ in range(16)]  # for `n!` and `n/k`
    beside, on = [*small, *drawn, *(_rounded(place, names) for place in drawn)], list[Place]()
    for base in (_few_places(nodes)[0], drawn[-1])[: 2 if len(names) == 2 else 1]:
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
