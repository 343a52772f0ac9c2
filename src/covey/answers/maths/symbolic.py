"""Whether two expressions are equal: by their values, at several points where they have variables.

A text is parsed without evaluating it (`covey.answers.maths.expression`), and its value is computed within bounds
(`covey.answers.maths.evaluation`). An expression without a value (infinite, undefined, too large, a sum or a limit)
equals only itself. There is no timer: work is counted (`covey.answers.maths.budget`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction

from covey.answers.maths.arithmetic import Value, as_fraction, is_real, is_zero
from covey.answers.maths.budget import spend
from covey.answers.maths.evaluation import values_at
from covey.answers.maths.expression import Node, constant, parse, uses_imaginary_unit, variables
from covey.answers.maths.numbers import Number, rounds_to
from covey.answers.maths.places import PIECES, Place, breaks, few, many, uses

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
    found = list(dict.fromkeys(at for side in sides for at in breaks(side)))
    if not found:
        simple = [(place, values) for place in few(sides) if (values := values_at(nodes, place, imaginary))]
        if len(simple) >= _ENOUGH:
            yield from simple
            return
    shared = 0
    beside, on = many(sides, found)
    for place in beside:
        if values := values_at(nodes, place, imaginary):
            shared += 1
            yield place, values
        elif any(uses(side, PIECES) and values_at((side,), place, imaginary) for side in sides):
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
