"""Whether two bare answers are the same: a ladder of rules, cheap and certain ones first, mathematics last.

A rule looks at a gold answer and a prediction, both tidied, and says True, False, or None: not my business. The first
that speaks is right. docs/grading.md states the policy in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TypeVar

from covey.answers import structure, symbolic
from covey.answers.latex import MAX_LENGTH, tidy, trim
from covey.answers.numbers import Number, read_number
from covey.answers.quantity import Measured, hundredth, measured, quantities_agree, units_differ

_THOUSANDS = re.compile(r"(?<![\d,])(\d{1,3}(?:,\s?\d{3})+)(?![\d,])", re.ASCII)
_WORD = re.compile(r"[A-Za-z][a-z']{3,}(?:-[a-z]+)*")  # of four letters, for `xyz` may be a product
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_WHOLE_TEXT = re.compile(r"\s*(?:\\text\{[^{}]*\}\s*)+")
_MAX_ITEMS = 64
_MAX_DEPTH = 6
T = TypeVar("T")
_MAX_EXPRESSIONS = 200  # comparisons of mathematics for one pair of answers: what two long lists may cost
_depth: ContextVar[int] = ContextVar("depth", default=0)
_compared: ContextVar[int] = ContextVar("compared", default=0)


def agree(gold: str, prediction: str) -> bool:
    """Whether two answers are the same. Neither has to be tidied, or of any use; nothing is evaluated unbounded."""
    first, second = tidy(gold), tidy(prediction)
    if not first or not second or max(len(first), len(second)) > MAX_LENGTH:
        return bool(first) and first == second
    _compared.set(0)
    if same(first, second):
        return True
    merged = _without_thousands(first), _without_thousands(second)
    return merged != (first, second) and same(*merged)


def is_readable(text: str) -> bool:
    """Whether an answer can be told from others: a number, a word, a choice, mathematics, or a collection of these."""
    text = tidy(text)
    if not text or len(text) > MAX_LENGTH:
        return False
    return _is_readable(text, 0)


def _is_readable(text: str, depth: int) -> bool:
    core = measured(text).core
    if read_number(core) is not None or structure.read_choice(text) or is_word(text):
        return True
    if structure.read_clock(text) is not None or structure.read_matrix(text) is not None:
        return True
    if depth > _MAX_DEPTH:
        return False
    parts: Sequence[str] = ()
    if collection := structure.read_collection(text):
        parts = collection.items
    elif (region := structure.read_region(text)) is not None and (region[0] or len(region[1]) > 1):
        parts = [end for interval in region[1] for end in (interval.low, interval.high)]
    elif named := structure.read_named(text):
        parts = [named.value]
    elif sides := structure.sides(text):
        parts = sides
    elif ratio := structure.read_ratio(text):
        parts = ratio
    if parts:
        return all(_is_readable(trim(part), depth + 1) for part in parts)
    return symbolic.read(core) is not None


def is_word(text: str) -> bool:
    r"""Whether an answer is one word, or words that LaTeX marks as text: `odd`, `\text{not possible}`."""
    return bool(_WORD.fullmatch(text) or _WHOLE_TEXT.fullmatch(text))


def same(gold: str, prediction: str) -> bool:
    """Whether two tidied answers are the same."""
    gold, prediction = trim(gold), trim(prediction)
    if _key(gold) == _key(prediction):
        return bool(gold)
    if not gold or not prediction or _depth.get() > _MAX_DEPTH:
        return False
    token = _depth.set(_depth.get() + 1)
    try:
        return next((verdict for rule in RULES if (verdict := rule(gold, prediction)) is not None), False)
    finally:
        _depth.reset(token)


def _key(text: str) -> str:
    """What two texts that differ in spelling only have in common."""
    text = re.sub(r"\s+", "", _TEXT.sub(r"\1", text))
    return text.lower() if text.isalpha() else text


def _without_thousands(text: str) -> str:
    return _THOUSANDS.sub(lambda found: re.sub(r"[,\s]", "", found[1]), text)


def _numbers(gold: str, prediction: str) -> bool | None:
    """Numbers, in whatever spelling, with or without units and percent signs."""
    return quantities_agree(measured(gold), measured(prediction))


def _based(gold: str, prediction: str) -> bool | None:
    """Numbers in another base: the digits must be the same, and the base too where both sides name it."""
    first, second = structure.read_based(gold), structure.read_based(prediction)
    if first is None or second is None or not (first[1] or second[1]):
        return None
    return first[0] == second[0] and (first[1] == second[1] or "" in (first[1], second[1]))


def _choices(gold: str, prediction: str) -> bool | None:
    """Multiple choice: the letter counts, in either case, with or without what it stands for."""
    first, second = structure.read_choice(gold), structure.read_choice(prediction)
    if first is None or second is None:
        return None
    return first[0] == second[0]


def _clocks(gold: str, prediction: str) -> bool | None:
    """Times of day."""
    first, second = structure.read_clock(gold), structure.read_clock(prediction)
    return None if first is None or second is None else first == second


def _ratios(gold: str, prediction: str) -> bool | None:
    """Ratios: `2 : 4` is `1 : 2`, and of two parts also the fraction."""
    first, second = structure.read_ratio(gold), structure.read_ratio(prediction)
    if first is None or second is None or len(first) != len(second):
        single, ratio = (gold, second) if first is None else (prediction, first)
        if (first is None) == (second is None) or ratio is None or len(ratio) != 2:
            return None
        fraction = rf"\frac{{{ratio[0]}}}{{{ratio[1]}}}"
        return None if structure.is_name(ratio[0]) else same(single, fraction)
    left, right = [read_number(part) for part in first], [read_number(part) for part in second]
    ours, theirs = [n.value for n in left if n is not None], [n.value for n in right if n is not None]
    if len(ours) < len(first) or len(theirs) < len(first) or not ours[0] or not theirs[0]:
        return all(same(a, b) for a, b in zip(first, second, strict=True))
    return all(a * theirs[0] == b * ours[0] for a, b in zip(ours, theirs, strict=True))


def _is_list(text: str) -> bool:
    return len(structure.split(text, ",", ";", "and", "or")) > 1


def _named(gold: str, prediction: str) -> bool | None:
    """`x = 5` is `5`; two names must be the same. Where the values differ, two equations may still say the same."""
    if _is_list(gold) or _is_list(prediction):
        return None
    first, second = structure.read_named(gold), structure.read_named(prediction)
    if first is None and second is None:
        return None
    if (first is None and structure.sides(gold)) or (second is None and structure.sides(prediction)):
        return _equations(gold, prediction)
    if first and second and first.name and second.name:
        return _both_named(first, second, gold, prediction)
    return same(first.value if first else gold, second.value if second else prediction)


def _both_named(first: structure.Named, second: structure.Named, gold: str, prediction: str) -> bool:
    one, other = (re.sub(r"[\s{}]", "", named.name) for named in (first, second))
    if one == other:
        return same(first.value, second.value) or bool(_equations(gold, prediction))
    call, called = _CALL.fullmatch(one), _CALL.fullmatch(other)
    if call and called and call[1] == called[1]:  # f(n) = … and f(x) = …
        value = re.sub(rf"(?<![a-zA-Z\\]){called[2]}(?![a-zA-Z])", call[2], second.value)
        return same(first.value, value)
    return bool(_equations(gold, prediction))


_CALL = re.compile(r"([A-Za-z]+)\(([a-zA-Z])\)")


def _regions(gold: str, prediction: str) -> bool | None:
    """Intervals and inequalities in one variable, and unions of them."""
    first, second = structure.read_region(gold), structure.read_region(prediction)
    if first is None or second is None:
        return None
    plain = [not name and len(found) == 1 for name, found in (first, second)]
    if all(plain):
        return None  # two brackets: tuples or intervals, which the next rule compares
    if first[0] and second[0] and _key(first[0]) != _key(second[0]):
        return False
    return _match(first[1], second[1], _intervals_agree)


def _intervals_agree(gold: structure.Interval, prediction: structure.Interval) -> bool:
    brackets = (gold.opening, gold.closing) == (prediction.opening, prediction.closing)
    return brackets and same(gold.low, prediction.low) and same(gold.high, prediction.high)


def _collections(gold: str, prediction: str) -> bool | None:
    """Lists, sets, tuples: in brackets the order counts, in braces and bare lists it does not, nor do repetitions."""
    first, second = structure.read_collection(gold), structure.read_collection(prediction)
    if first is None and second is None:
        return None
    if first is None or second is None:
        collection, single = (first or second, prediction if first else gold)
        assert collection is not None
        if structure.read_matrix(single) is not None:
            return None
        if len(collection.items) == 1:
            return collection.opening == "{" and same(collection.items[0], single)
        named = structure.read_named(single)
        if named is not None and structure.read_collection(named.value):  # (p, q) = (3, 2)
            return same(named.value, prediction) if first is None else same(gold, named.value)
        return _match([gold] if first is None else first.items, [prediction] if second is None else second.items, same)
    return _brackets_agree(first, second)


def _brackets_agree(gold: structure.Collection, prediction: structure.Collection) -> bool:
    if max(len(gold.items), len(prediction.items)) > _MAX_ITEMS:
        return False
    if gold.ordered and prediction.ordered:
        if (gold.opening, gold.closing) != (prediction.opening, prediction.closing):
            return False
        return _in_order(gold.items, prediction.items)
    if "{" in (gold.opening, prediction.opening) and (gold.ordered or prediction.ordered):
        return False
    ours, theirs = _names(gold.items), _names(prediction.items)
    if gold.ordered or prediction.ordered:
        return _in_order(_values(gold.items), _values(prediction.items))
    if all(ours) and all(theirs):
        return _match(gold.items, prediction.items, same)
    named = [name for name in (ours if any(ours) else theirs) if name]
    if len(set(named)) > 1 and not (any(ours) and any(theirs)):  # AB = 4, CD = 5 and 4, 5
        values = _values(gold.items), _values(prediction.items)
        return _in_order(*values) or (_subscripted(named) and _match(*values, same))
    return _match(_values(gold.items), _values(prediction.items), same)


def _subscripted(names: Sequence[str]) -> bool:
    """Whether names are one letter numbered, as `x_1` and `x_2`: then nobody can say which comes first."""
    return len({name.split("_")[0] for name in names}) == 1


def _names(items: Sequence[str]) -> list[str]:
    found = [structure.read_named(item) for item in items]
    return [named.name if named is not None else "" for named in found]


def _values(items: Sequence[str]) -> list[str]:
    found = [structure.read_named(item) for item in items]
    return [item if named is None else named.value for named, item in zip(found, items, strict=True)]


def _in_order(gold: Sequence[str], prediction: Sequence[str]) -> bool:
    return len(gold) == len(prediction) and all(same(a, b) for a, b in zip(gold, prediction, strict=True))


def _match(gold: Sequence[T], prediction: Sequence[T], agrees: Callable[[T, T], bool]) -> bool:
    """Whether every item of one side is an item of the other, in any order."""
    if max(len(gold), len(prediction)) > _MAX_ITEMS:
        return False
    left = [item for item in prediction if item not in gold]
    missing = [item for item in gold if item not in prediction]
    return all(any(agrees(g, p) for g in gold) for p in left) and all(
        any(agrees(g, p) for p in prediction) for g in missing
    )


def _matrices(gold: str, prediction: str) -> bool | None:
    """Matrices cell by cell; a single row or column is also the tuple of its cells. Cases in any order."""
    first, second = structure.read_matrix(gold), structure.read_matrix(prediction)
    if first is None and second is None:
        return None
    if first is not None and second is not None:
        if first[0] != second[0]:
            return False
        if first[0] == "cases":
            return _match([" ".join(row) for row in first[1]], [" ".join(row) for row in second[1]], same)
        return [len(row) for row in first[1]] == [len(row) for row in second[1]] and all(
            _in_order(ours, theirs) for ours, theirs in zip(first[1], second[1], strict=True)
        )
    matrix, other = (first, prediction) if first is not None else (second, gold)
    assert matrix is not None
    collection = structure.read_collection(other)
    cells = [cell for row in matrix[1] for cell in row]
    if collection is None or collection.opening == "{" or 1 not in (len(matrix[1]), max(map(len, matrix[1]))):
        return None
    return _in_order(cells, collection.items)


def _equations(gold: str, prediction: str) -> bool | None:
    """Equations that are no assignments: the same up to a constant factor."""
    first, second = structure.sides(gold), structure.sides(prediction)
    if first is None or second is None:
        return None if first is None and second is None else False
    if _in_order(first, second):
        return True
    ours = [symbolic.read(side, prediction) for side in first]
    theirs = [symbolic.read(side, gold) for side in second]
    if any(side is None for side in (*ours, *theirs)):
        return False
    return symbolic.equations_agree((ours[0], ours[1]), (theirs[0], theirs[1]))


def _words(gold: str, prediction: str) -> bool | None:
    """Words that are not the same words are different answers."""
    return False if is_word(gold) or is_word(prediction) else None


def _expressions(gold: str, prediction: str) -> bool | None:
    """Mathematics. A constant and a decimal agree in the precision of the decimal."""
    first, second = measured(gold), measured(prediction)
    if units_differ(first, second):
        return False
    _compared.set(_compared.get() + 1)
    if _compared.get() > _MAX_EXPRESSIONS:
        return False
    left, right = symbolic.read(first.core, second.core), symbolic.read(second.core, first.core)
    if left is None or right is None:
        return None
    for expression, side, other in ((left, first, second), (right, second, first)):
        number = read_number(other.core)
        if number is not None and (verdict := _decimal(expression, side, number, other)) is not None:
            return verdict
    return symbolic.expressions_agree(left, right)


def _decimal(expression: object, side: Measured, number: Number, other: Measured) -> bool | None:
    verdict = symbolic.matches_decimal(expression, number)
    if verdict is False and other.percent and not side.percent:
        return symbolic.matches_decimal(expression, hundredth(number))
    if verdict is False and side.percent and not other.percent:
        hundred = Number(number.value * 100, None if number.places is None else number.places - 2, number.significant)
        return symbolic.matches_decimal(expression, hundred)
    return verdict


RULES: tuple[Callable[[str, str], bool | None], ...] = (
    _clocks,
    _based,
    _numbers,
    _choices,
    _regions,
    _matrices,
    _named,
    _collections,
    _ratios,
    _equations,
    _words,
    _expressions,
)
"""In the order in which they are asked."""
