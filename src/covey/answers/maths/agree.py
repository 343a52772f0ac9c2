r"""Whether two bare answers are the same, by a list of rules: cheap and certain ones first, mathematics last.

A rule takes a gold answer and a prediction, both tidied, and returns True, False, or None where it does not apply. The
first verdict counts. docs/grading.md states the policy in words. Where a gold answer cannot be read, the data is wrong,
not the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import TypeVar

from covey.answers.maths import shape, symbolic
from covey.answers.maths.expression import Node
from covey.answers.maths.notation import (
    MAX_LENGTH,
    Measured,
    Number,
    agree_in_percent,
    both_measured,
    measured,
    own,
    own_words,
    read_decimal_comma,
    read_number,
    rounds_to,
    shifted,
    tidy,
    trim,
    units_differ,
)
from covey.answers.maths.sets import sets_agree
from covey.answers.maths.value import ExhaustedError, allowed, spend

_THOUSANDS = re.compile(r"(?<![\d,.])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)", re.ASCII)
_SPACE = re.compile(  # none between digits: `1 2` is not `12`, and `10, 200` not `10,200`
    r"\s+(?![\d.])|(?<![\d.,])\s+|(?<=,)\s+(?!\d{3}(?!\d))", re.ASCII
)
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_MAX_ITEMS = 64
T = TypeVar("T")
_MOST_WORK = 200_000  # for one pair of answers
_COST_OF_RULES = 30
_depth: ContextVar[int] = ContextVar("depth", default=0)


def agree(gold: str, prediction: str, question: str = "") -> bool | None:
    """Whether two answers are the same; None if they are, and the prediction is not in final form (see `shape`).

    They may be any text; the work is bounded. Words of the question ("how many pebbles") are units too.
    """
    first, second = tidy(gold), tidy(prediction)
    if not (_is_bounded(first) and _is_bounded(second)):
        return bool(first) and first == second
    pending: list[str] = []
    token = own.set(own_words(first, question))
    try:
        with shape.final_form_required(pending):
            if _agree(first, second):
                return True
        return None if pending and _agree(first, second) else False
    finally:
        own.reset(token)


def _agree(first: str, second: str) -> bool:
    try:
        with allowed(_MOST_WORK):
            merged = _without_thousands(first), _without_thousands(second)
            return _same(first, second) or (merged != (first, second) and _same(*merged))
    except ExhaustedError:
        return False


def _same(gold: str, prediction: str) -> bool:
    """Whether two tidied answers are the same."""
    gold, prediction = trim(gold), trim(prediction)
    if _key(gold) == _key(prediction):
        return bool(gold)
    if not gold or not prediction or _depth.get() > _MAX_DEPTH:
        return False
    spend(_COST_OF_RULES)
    token = _depth.set(_depth.get() + 1)
    try:
        return next((verdict for rule in _RULES if (verdict := rule(gold, prediction)) is not None), False)
    finally:
        _depth.reset(token)


def _key(text: str) -> str:
    """A key that is equal for texts which differ only in white space, case or `\\text`."""
    text = _SPACE.sub("", _TEXT.sub(r"\1", text))
    is_word = text.isalpha() and (len(text) > 2 or text.lower() in ("no", "up"))
    return text.lower() if is_word else text


def _without_thousands(text: str) -> str:
    """The text without thousands separators; in the brackets of a list or tuple commas separate items."""
    if not _THOUSANDS.search(text):
        return text
    listed, depth = [], 0
    for character in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        listed.append(depth)
    sets = shape.read_collection(text)
    inside_braces = sets is not None and sets.opening == "{"
    return _THOUSANDS.sub(
        lambda found: found[0] if inside_braces or listed[found.start()] else found[0].replace(",", ""), text
    )


_WORD = re.compile(r"[A-Za-z][a-z']{3,}(?:-[a-z]+)*")  # of at least four letters: `xyz` may be a product
_WHOLE_TEXT = re.compile(r"\s*(?:\\text\{[^{}]*\}\s*)+")
_MAX_DEPTH = 6
_MAX_BRACKETS = 30


def _is_bounded(text: str) -> bool:
    """Whether a tidied answer is short and flat enough to be parsed; others are compared as text."""
    return 0 < len(text) <= MAX_LENGTH and shape.depth(text) <= _MAX_BRACKETS


@lru_cache(maxsize=4096)
def is_readable(text: str) -> bool:
    """Whether an answer can be compared: it is a number, a word, a choice, mathematics, or a collection of these."""
    text = tidy(text)
    token = own.set(own_words(text))
    try:
        return _is_bounded(text) and _is_readable(text, 0)
    finally:
        own.reset(token)


def _is_readable(text: str, depth: int) -> bool:
    text = shape.MODULUS.sub("", text)
    core = measured(text).core
    if read_number(core) is not None or shape.read_choice(text) or _is_word(text):
        return True
    if shape.read_clock(text) is not None or shape.read_matrix(text) is not None:
        return True
    if depth > _MAX_DEPTH:
        return False
    parts: Sequence[str] = ()
    if collection := shape.read_collection(text):
        parts = collection.items
    elif (region := shape.read_region(text)) is not None and (region[0] or len(region[1]) > 1):
        parts = [end for interval in region[1] for end in (interval.low, interval.high)]
    elif named := shape.read_named(text):
        parts = [named.value]
    elif sides := shape.sides(text):
        parts = sides
    elif compared := shape.relations(text):
        parts = [side for _, left, right in compared for side in (left, right)]
    elif ratio := shape.read_ratio(text):
        parts = ratio
    if parts:
        return all(_is_readable(trim(part), depth + 1) for part in parts)
    return symbolic.read(core) is not None


def _is_word(text: str) -> bool:
    r"""Whether an answer is one word, or words that LaTeX marks as text: `odd`, `\text{not possible}`."""
    return bool(_WORD.fullmatch(text) or _WHOLE_TEXT.fullmatch(text))


def _statement(text: str) -> shape.Named | None:
    r"""The name and value of `x = 2 + 3 = 5`, `2 + 3 = 5`, `a + b = 5` or `\sin G \approx 0.5`."""
    exact, rounded = shape.chain(text)
    if named := shape.read_named(text):
        return named if all(_may_round(named.value, part) for part in rounded) else None
    values = [part for part in exact if symbolic.is_constant(measured(part).core)]
    if len(exact) == len(rounded) == 1:
        if values and not _are_near(exact[0], rounded[0]):
            return None
        return shape.Named("", exact[0] if values else rounded[0])
    if len(exact) < 2 or not values:
        return None
    if any(symbolic.read(measured(part).core) is None and not shape.is_name(part) for part in exact):
        return None
    other = next((part for part in exact if part not in values), "")
    if other and len(exact) == 2 and values[-1] == "0":  # an equation in standard form
        return None
    return shape.Named(other, values[-1], tuple(values[:-1]))


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


def _rounds_to_decimal(exact: str, decimal: str) -> bool:
    """Whether a text is a constant that rounds to the decimal."""
    number, value = read_number(decimal), symbolic.real_value(exact)
    return number is not None and bool(number.places) and value is not None and rounds_to(value, number)


def _clocks(gold: str, prediction: str) -> bool | None:
    """Times of day."""
    first, second = shape.read_clock(gold), shape.read_clock(prediction)
    return None if first is None or second is None else first == second


def _based(gold: str, prediction: str) -> bool | None:
    """Numbers in another base: the digits must be the same, and the base too. The prediction may leave it out; where
    the gold answer does, it is ten."""
    first, second = shape.read_based(gold), shape.read_based(prediction)
    if first is None or second is None or not (first[1] or second[1]):
        return None
    return first[0] == second[0] and second[1] in (("", first[1]) if first[1] else ("10",))


def _numbers(gold: str, prediction: str) -> bool | None:
    """Numbers, with or without units and percent signs."""
    first, second = measured(gold), measured(prediction)
    target, *readings = read_number(first.core), read_number(second.core), read_decimal_comma(second.core)
    found = [number for number in readings if number is not None]
    if target is None or not found:
        return None
    if any(agree_in_percent(target, number, first.percent, second.percent) for number in found):
        return not units_differ(first, second) and shape.admits_form(first.core, second.core)
    return None if "," in first.core and "," in second.core else False


def _choices(gold: str, prediction: str) -> bool | None:
    """Multiple choice: the letter counts, in either case, with or without the text of the choice."""
    first, second = shape.read_choice(gold), shape.read_choice(prediction)
    if first is None or second is None or (_is_small_letter(gold) and not _is_small_letter(prediction)):
        return None
    return first[0] == second[0]


def _is_small_letter(text: str) -> bool:
    """Whether an answer may be a variable rather than a choice: `e`, not `E` or `(e)`."""
    return len(text) == 1 and text.islower()


def _words(gold: str, prediction: str) -> bool | None:
    """Different words are different answers."""
    return False if _is_word(gold) or _is_word(prediction) else None


def _expressions(gold: str, prediction: str) -> bool | None:
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
    return equal and shape.admits_form(first.core, second.core)


def _decimal(expression: Node, side: Measured, number: Number, other: Measured) -> bool | None:
    verdict = symbolic.matches_decimal(expression, number)
    if verdict is False and other.percent and not side.percent:
        return symbolic.matches_decimal(expression, shifted(number, -2))
    if verdict is False and side.percent and not other.percent:
        return symbolic.matches_decimal(expression, shifted(number, 2))
    return verdict


def _ratios(gold: str, prediction: str) -> bool | None:
    """Ratios: `2 : 4` is `1 : 2`, and of two parts also the fraction."""
    first, second = shape.read_ratio(gold), shape.read_ratio(prediction)
    if first is None or second is None or len(first) != len(second):
        ratio = second if first is None else first
        if (first is None) == (second is None) or ratio is None or len(ratio) != 2:
            return None
        if shape.is_name(ratio[0]) or ratio[0] == "0" or ratio[1].startswith("0"):
            return None
        is_quotient = all(map(read_number, ratio))
        fraction = f"{ratio[0]}/{ratio[1]}" if is_quotient else rf"\frac{{{ratio[0]}}}{{{ratio[1]}}}"
        return _same(fraction, prediction) if second is None else _same(gold, fraction)
    left, right = [read_number(part) for part in first], [read_number(part) for part in second]
    ours, theirs = [n.value for n in left if n is not None], [n.value for n in right if n is not None]
    if len(ours) < len(first) or len(theirs) < len(first) or not ours[0] or not theirs[0]:
        return all(_same(a, b) for a, b in zip(first, second, strict=True))
    return all(a * theirs[0] == b * ours[0] for a, b in zip(ours, theirs, strict=True))


def _congruences(gold: str, prediction: str) -> bool | None:
    r"""`5 \pmod{17}`: a modulus that only one side writes does not matter; two must be the same."""
    first, second = shape.MODULUS.search(gold), shape.MODULUS.search(prediction)
    if first is None and second is None:
        return None
    if first and second and not _same(first[1], second[1]):
        return False
    return _same(gold[: first.start()] if first else gold, prediction[: second.start()] if second else prediction)


def _named(gold: str, prediction: str) -> bool | None:
    """`x = 5` is `5`; two names must be the same. Equations with different values may still be equivalent."""
    if any(len(shape.split(text, ",", ";", "and", "or")) > 1 for text in (gold, prediction)):  # lists
        return None
    first, second = _statement(gold), _statement(prediction)
    if second is not None and not _is_consistent(second):
        return False
    if first is not None and second is not None and first.name and second.name:
        return _both_named(first, second, gold, prediction)
    if first is not None and first.name and not shape.is_name(first.name):
        return False if second is not None else _equations(gold, prediction)
    if (first is None and shape.sides(gold)) or (second is None and shape.sides(prediction)):
        return _equations(gold, prediction)
    if first is None and second is None:
        return None
    ours, theirs = first.value if first else gold, second.value if second else prediction
    if _same(ours, theirs):
        return True
    with shape.final_form_required(None):  # `180 = 92 + 88` states 180 too
        agreed = second is not None and bool(second.between) and _same(ours, theirs)
    return agreed and any(_same(ours, part) for part in (second.between if second else ()))


def _is_consistent(named: shape.Named) -> bool:
    """Whether a chain states its last value: not `1 = 2 = 5`, nor `5 = 5`, which states nothing, nor `A = B`.

    Of the numbers before the last value one must equal it; the others may be wrong.
    """
    if _key(named.name) == _key(named.value) or (shape.read_choice(named.name) and shape.read_choice(named.value)):
        return False
    value, parts = measured(trim(named.value)), [measured(trim(part)) for part in named.between]
    if any(_key(part.core) == _key(value.core) for part in parts):
        return False
    if not any(read_number(part.core) and not units_differ(part, value) for part in parts):
        return True
    with shape.final_form_required(None):
        return any(_same(part.core, value.core) or _rounds_to_decimal(part.core, value.core) for part in parts)


def _both_named(first: shape.Named, second: shape.Named, gold: str, prediction: str) -> bool:
    one, other = (re.sub(r"[\s{}]", "", named.name) for named in (first, second))
    if one == other:
        return _same(first.value, second.value) or bool(_equations(gold, prediction))
    call, called = _CALL.fullmatch(one), _CALL.fullmatch(other)
    if call and called and call[1] == called[1]:  # f(n) = … and f(x) = …
        swapped = {call[2]: called[2], called[2]: call[2]}  # so that f(y) = x is not f(x) = x
        value = _LETTER.sub(lambda letter: swapped.get(letter[0], letter[0]), second.value)
        return _same(first.value, value)
    return bool(_equations(gold, prediction))


_LETTER = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")
_CALL = re.compile(r"([A-Za-z]+)\(([a-zA-Z])\)")


def _regions(gold: str, prediction: str) -> bool | None:
    """Intervals and inequalities in one variable, and unions of them."""
    first, second = shape.read_region(gold), shape.read_region(prediction)
    if first is None or second is None:
        return None
    plain = [not name and len(found) == 1 for name, found in (first, second)]
    if all(plain):
        return None  # two brackets: tuples or intervals, which `_collections` compares
    if first[0] and second[0] and _key(first[0]) != _key(second[0]):
        return False

    def agrees(one: shape.Interval, other: shape.Interval) -> bool:
        brackets = (one.opening, one.closing) == (other.opening, other.closing)
        return brackets and _same(one.low, other.low) and _same(one.high, other.high)

    return _match(first[1], second[1], agrees) or bool(sets_agree(gold, prediction))


def _collections(gold: str, prediction: str) -> bool | None:
    """Lists, sets, tuples: in brackets order counts; in braces and bare lists neither order nor repetition does."""
    first, second = shape.read_collection(gold), shape.read_collection(prediction)
    if _THOUSANDS.fullmatch(gold):  # one number, not two; a prediction `10,200` may be either
        first = None
    if first is None and second is None:
        return None
    if first is None or second is None:
        collection, single = (first or second, prediction if first else gold)
        assert collection is not None
        if shape.read_matrix(single) is not None:
            return None
        if len(collection.items) == 1:
            item, brackets = collection.items[0], collection.opening + collection.closing
            if brackets == "{}":
                held = r"\emptyset" not in (item, single) and not item.startswith(r"\{")  # the empty set is no element
            else:  # a Python list of one value
                held = brackets == "[]" and second is None and (item[0] in "'\"" or symbolic.is_constant(item))
            return held and (_same(item, prediction) if second is None else _same(gold, item))
        if collection.ordered and shape.read_named(single) is None:  # (2, 2) is not 2
            return False if symbolic.read(measured(single).core) else None
        named = shape.read_named(single)
        if named is not None and shape.read_collection(named.value):  # (p, q) = (3, 2)
            return _same(named.value, prediction) if first is None else _same(gold, named.value)
        return _match([gold] if first is None else first.items, [prediction] if second is None else second.items, _same)
    return _brackets_agree(first, second)


def _brackets_agree(gold: shape.Collection, prediction: shape.Collection) -> bool:
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
        brackets, named = (gold, theirs) if gold.ordered else (prediction, ours)
        names = [name for name in named if name]
        if brackets.opening + brackets.closing != "()" or len(set(names)) < len(names):  # an interval; x = 1, x = 2
            return False
        return _in_order(_values(gold.items), _values(prediction.items))
    if all(ours) and all(theirs):
        return _match(gold.items, prediction.items, _same)
    named = [name for name in (ours if any(ours) else theirs) if name]
    if len(set(named)) > 1 and not (any(ours) and any(theirs)):  # AB = 4, CD = 5 and 4, 5
        values = _values(gold.items), _values(prediction.items)
        subscripted = len({name.split("_")[0] for name in named}) == 1  # x_1 and x_2, whose order is arbitrary
        return _in_order(*values) or (subscripted and _match(*values, _same))
    return _match(_values(gold.items), _values(prediction.items), _same)


def _names(items: Sequence[str]) -> list[str]:
    found = [shape.read_named(item) for item in items]
    return [named.name if named is not None else "" for named in found]


def _values(items: Sequence[str]) -> list[str]:
    found = [shape.read_named(item) for item in items]
    return [
        named.value if named is not None and _is_consistent(named) else item
        for named, item in zip(found, items, strict=True)
    ]


def _in_order(gold: Sequence[str], prediction: Sequence[str]) -> bool:
    return len(gold) == len(prediction) and all(_same(a, b) for a, b in zip(gold, prediction, strict=True))


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
    first, second = shape.read_matrix(gold), shape.read_matrix(prediction)
    if first is None and second is None:
        return None
    if first is not None and second is not None:
        if first[0] != second[0]:
            return False
        if first[0] == "cases":
            return _match([" ".join(row) for row in first[1]], [" ".join(row) for row in second[1]], _same)
        return [len(row) for row in first[1]] == [len(row) for row in second[1]] and all(
            _in_order(ours, theirs) for ours, theirs in zip(first[1], second[1], strict=True)
        )
    matrix, other = (first, prediction) if first is not None else (second, gold)
    assert matrix is not None
    collection = shape.read_collection(other)
    cells = [cell for row in matrix[1] for cell in row]
    if collection is None or not collection.ordered or 1 not in (len(matrix[1]), max(map(len, matrix[1]))):
        return None
    return _in_order(cells, collection.items)


def _equations(gold: str, prediction: str) -> bool | None:
    """Equations that are not assignments: the same up to a constant factor."""
    first, second = shape.sides(gold), shape.sides(prediction)
    if first is None or second is None:
        return None if first is None and second is None else False
    return _in_order(first, second) or _sides_agree(first, second)


def _sides_agree(gold: tuple[str, str], prediction: tuple[str, str], same_direction: bool | None = None) -> bool:
    nodes = [symbolic.read(side) for side in (*gold, *prediction)]
    if any(node is None for node in nodes):
        return False
    first, second, third, fourth = (node for node in nodes if node is not None)
    return symbolic.relations_agree((first, second), (third, fourth), same_direction)


def _inequalities(gold: str, prediction: str) -> bool | None:
    """Inequalities: the same up to a factor; a negative one reverses them. A chain is compared link by link."""
    ours, theirs = shape.relations(gold), shape.relations(prediction)
    if not ours and not theirs:
        return None
    if len(ours) != len(theirs):
        return False
    links = list(zip(ours, theirs, strict=True))
    return all(_links_agree(one, other) for one, other in links) or (
        len(links) > 1 and all(_links_agree(one, other) for one, other in zip(ours, reversed(theirs), strict=True))
    )


def _links_agree(gold: tuple[str, str, str], prediction: tuple[str, str, str]) -> bool:
    sign, other = gold[0], prediction[0]
    if len(sign) != len(other) or (sign == "!=") != (other == "!="):
        return False
    if sign == other and _in_order(gold[1:], prediction[1:]):
        return True
    return _sides_agree(gold[1:], prediction[1:], None if sign == "!=" else sign == other)


_RULES: tuple[Callable[[str, str], bool | None], ...] = (
    _clocks,
    _based,
    _numbers,
    _choices,
    _congruences,
    _regions,
    sets_agree,
    _matrices,
    _named,
    _collections,
    _ratios,
    _equations,
    _inequalities,
    _words,
    _expressions,
)
"""In the order in which they are applied."""
