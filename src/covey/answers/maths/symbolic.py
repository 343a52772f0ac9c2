"""Whether two expressions are equal: by their values, at several points where they have variables.

A text is parsed without evaluating it (`covey.answers.maths.expression`), and its value is computed within bounds
(`covey.answers.maths.evaluation`). An expression without a value (infinite, undefined, too large, a sum or a limit)
equals only itself. There is no timer: work is counted (`covey.answers.maths.budget`).
"""

from __future__ import annotations

from fractions import Fraction

from covey.answers.maths.arithmetic import NoValueError, Value, as_fraction, is_real, is_zero
from covey.answers.maths.budget import spend
from covey.answers.maths.evaluation import evaluate
from covey.answers.maths.expression import Node, parse, uses_imaginary_unit, variables
from covey.answers.maths.numbers import Number, rounds_to

_POINTS = (
    (Fraction(61, 97), Fraction(137, 101), Fraction(223, 103)),
    (Fraction(173, 101), Fraction(43, 103), Fraction(313, 97)),
    (Fraction(-83, 101), Fraction(127, 107), Fraction(-247, 109)),
    (Fraction(263, 103), Fraction(-163, 97), Fraction(37, 101)),
)
_WHOLE_POINTS = tuple(
    tuple(map(Fraction, point)) for point in ((7, 4, 3), (12, 5, 8), (3, 7, 12), (5, 11, 17), (2, 9, 20))
)
"""For an expression that has no real value between whole numbers: `(-1)^n`, `n!`."""
_HERE = "here "
_COST_OF_READING = 8.0  # microseconds for a character
Sides = tuple[Node, Node]
Place = dict[str, Fraction]


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
        return any(map(is_zero, _values((gap,), {}, uses_imaginary_unit(gap))))
    found = _at_places((gap,))
    return bool(found) and all(is_zero(value) for _, (value,) in found)


def relations_agree(gold: Sides, prediction: Sides, same_direction: bool | None = None) -> bool:
    """Whether two relations are equivalent: their `left - right` differ by a constant factor.

    Args:
        same_direction: for inequalities, whether both are of the same direction; then the factor must be positive, else
            negative.
    """
    first, second = _difference(*gold), _difference(*prediction)
    if not variables(first) or variables(first) != variables(second):
        return False
    found = _at_places((first, second))
    if not found or any(is_zero(value) for _, values in found for value in values):
        return False
    (here, (one, other)), *elsewhere = found
    for there, _ in elsewhere:  # first(there) * second(here) = first(here) * second(there)
        left, right = Node("mul", (first, _renamed(second))), Node("mul", (_renamed(first), second))
        gap = _values((_difference(left, right),), {**there, **{_HERE + name: here[name] for name in here}}, True)
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
    try:
        gap = evaluate(_difference(expression, Node("number", value=number.value)))
    except NoValueError:
        return False
    if is_zero(gap):
        return True
    rounded = number.significant >= 3 and number.places > 0 and number.value.denominator > 1
    return rounded and is_real(gap) and rounds_to(number.value + as_fraction(gap), number)


def real_value(text: str) -> Fraction | None:
    """The value of a text that is a real constant, exactly as computed; None where it has none."""
    node = read(text)
    if node is None or variables(node):
        return None
    try:
        value = evaluate(node)
    except NoValueError:
        return None
    return as_fraction(value) if is_real(value) else None


def _difference(left: Node, right: Node) -> Node:
    return Node("add", (left, Node("neg", (right,))))


def _at_places(nodes: tuple[Node, ...]) -> list[tuple[Place, tuple[Value, ...]]]:
    """Places at which all of these expressions have values, with the values; empty if there are fewer than two."""
    names = sorted({name for node in nodes for name in variables(node)})
    imaginary = any(map(uses_imaginary_unit, nodes))
    for points in (_POINTS, _WHOLE_POINTS):
        places: list[Place] = [{name: point[i % 3] + i // 3 for i, name in enumerate(names)} for point in points]
        found = [(place, values) for place in places if (values := _values(nodes, place, imaginary))]
        if len(found) > 1:
            return found
    return []


def _values(nodes: tuple[Node, ...], place: Place, imaginary: bool) -> tuple[Value, ...]:
    """The values of expressions at a place; empty where one of them has none."""
    try:
        return tuple(evaluate(node, place, imaginary) for node in nodes)
    except NoValueError:
        return ()
