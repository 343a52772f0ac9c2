"""Rules for answers that are one value: numbers, times of day, choices, words and expressions.

Like all rules of `agreement.py`, each takes a tidied gold answer and a tidied prediction and returns a verdict, or None
where it does not apply.
"""

from __future__ import annotations

from covey.answers.maths import final_form, structure, symbolic
from covey.answers.maths.expression import Node
from covey.answers.maths.numbers import Number, read_number
from covey.answers.maths.quantity import Measured, both_measured, hundredth, measured, quantities_agree, units_differ
from covey.answers.maths.readable import is_word


def clocks(gold: str, prediction: str) -> bool | None:
    """Times of day."""
    first, second = structure.read_clock(gold), structure.read_clock(prediction)
    return None if first is None or second is None else first == second


def based(gold: str, prediction: str) -> bool | None:
    """Numbers in another base: the digits must be the same, and the base too. The prediction may leave it out; where
    the gold answer does, it is ten."""
    first, second = structure.read_based(gold), structure.read_based(prediction)
    if first is None or second is None or not (first[1] or second[1]):
        return None
    return first[0] == second[0] and second[1] in (("", first[1]) if first[1] else ("10",))


def numbers(gold: str, prediction: str) -> bool | None:
    """Numbers, with or without units and percent signs."""
    first, second = measured(gold), measured(prediction)
    verdict = quantities_agree(first, second)
    return verdict and final_form.admits(first.core, second.core)


def choices(gold: str, prediction: str) -> bool | None:
    """Multiple choice: the letter counts, in either case, with or without the text of the choice."""
    first, second = structure.read_choice(gold), structure.read_choice(prediction)
    if first is None or second is None or (_is_small_letter(gold) and not _is_small_letter(prediction)):
        return None
    return first[0] == second[0]


def _is_small_letter(text: str) -> bool:
    """Whether an answer may be a variable rather than a choice: `e`, not `E` or `(e)`."""
    return len(text) == 1 and text.islower()


def words(gold: str, prediction: str) -> bool | None:
    """Different words are different answers."""
    return False if is_word(gold) or is_word(prediction) else None


def expressions(gold: str, prediction: str) -> bool | None:
    """Mathematics. A constant is compared with a decimal at the decimal's precision."""
    first, second = both_measured(gold, prediction)
    if units_differ(first, second):
        return False
    left, right = symbolic.read(first.core), symbolic.read(second.core)
    if left is None or right is None:
        return None
    verdict: bool | None = None
    for expression, side, other in ((left, first, second), (right, second, first)):
        if verdict is None and (number := read_number(other.core)) is not None:
            verdict = _decimal(expression, side, number, other)
    equal = symbolic.expressions_agree(left, right) if verdict is None else verdict
    return equal and final_form.admits(first.core, second.core)


def _decimal(expression: Node, side: Measured, number: Number, other: Measured) -> bool | None:
    verdict = symbolic.matches_decimal(expression, number)
    if verdict is False and other.percent and not side.percent:
        return symbolic.matches_decimal(expression, hundredth(number))
    if verdict is False and side.percent and not other.percent:
        hundred = Number(number.value * 100, None if number.places is None else number.places - 2, number.significant)
        return symbolic.matches_decimal(expression, hundred)
    return verdict
