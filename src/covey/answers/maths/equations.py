r"""The value that an equation states: `x = 5`, `2 + 3 = 5`, `a + b = 5`, `1/3 \approx 0.33`."""

from __future__ import annotations

from covey.answers.maths import structure, symbolic
from covey.answers.maths.numbers import read_number, rounds_to
from covey.answers.maths.quantity import measured, units_differ


def statement(text: str) -> structure.Named | None:
    r"""The name and value of `x = 2 + 3 = 5`, `2 + 3 = 5`, `a + b = 5` or `\sin G \approx 0.5`."""
    exact, rounded = structure.chain(text)
    if named := structure.read_named(text):
        return named if all(_may_round(named.value, part) for part in rounded) else None
    values = [part for part in exact if symbolic.is_constant(measured(part).core)]
    if len(exact) == len(rounded) == 1:
        if values and not _are_near(exact[0], rounded[0]):
            return None
        return structure.Named("", exact[0] if values else rounded[0])
    if len(exact) < 2 or not values:
        return None
    if any(symbolic.read(measured(part).core) is None and not structure.is_name(part) for part in exact):
        return None
    other = next((part for part in exact if part not in values), "")
    if other and len(exact) == 2 and values[-1] == "0":  # an equation in standard form
        return None
    return structure.Named(other, values[-1], tuple(values[:-1]))


def _may_round(exact: str, rounded: str) -> bool:
    r"""Whether `x = exact \approx rounded` may be meant: not of a whole number, which has nothing to round."""
    first, second = measured(exact), measured(rounded)
    if units_differ(first, second) or first.percent != second.percent:  # converted
        return True
    value, other = symbolic.real_value(first.core), symbolic.real_value(second.core)
    return value is None or other is None or value.denominator > 1 or value == other


def _are_near(exact: str, rounded: str) -> bool:
    """Whether two texts are real constants that differ by at most a fiftieth."""
    first, second = (symbolic.real_value(measured(text).core) for text in (exact, rounded))
    if first is not None and first.denominator == 1 and first != second:
        return False
    return first is not None and second is not None and 50 * abs(first - second) <= max(abs(first), abs(second))


def rounds_to_decimal(exact: str, decimal: str) -> bool:
    """Whether a text is a constant that rounds to the decimal."""
    number, value = read_number(decimal), symbolic.real_value(exact)
    return number is not None and bool(number.places) and value is not None and rounds_to(value, number)
