r"""Sets of real numbers: unions, intersections and differences of intervals and points.

The ends of all intervals divide the real line into points and gaps; two sets are equal if the same of these belong to
both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from covey.answers.maths import shape
from covey.answers.maths.symbolic import real_value

_OPERATORS: dict[str, Callable[[bool, bool], bool]] = {
    r"\cup": lambda left, right: left or right,
    r"\cap": lambda left, right: left and right,
    r"\setminus": lambda left, right: left and not right,
    r"\backslash": lambda left, right: left and not right,
}
_INFINITE = {r"\infty": Fraction(2**100_000), r"-\infty": Fraction(-(2**100_000))}  # beyond all that is computed
_PRECISION = 2**450  # values that differ by less are one: they are computed with more bits than that
_MAX_PARTS = 64


class _Set(NamedTuple):
    ends: dict[Fraction, str]
    """Its ends, each with its text."""
    holds: Callable[[Fraction], bool]


def sets_agree(gold: str, prediction: str) -> bool | None:
    r"""Whether two texts describe the same set of numbers; None where neither uses `\cup`, `\cap`, `\setminus`, `\ne`,
    or one is not a set of numbers."""
    if not (_is_composed(gold) or _is_composed(prediction)):
        return None
    first, second = _read(gold), _read(prediction)
    if first is None or second is None:
        return None
    ends = sorted({*first.ends, *second.ends})
    gaps = [(low + high) / 2 for low, high in pairwise(ends)]
    if any(first.holds(place) != second.holds(place) for place in (*ends, *gaps)):
        return False
    texts = [(text, second.ends.get(end, text)) for end, text in first.ends.items()]
    return all(mine == text or shape.admits_form(mine, text) for mine, text in texts)


def _is_composed(text: str) -> bool:
    return any(token in _OPERATORS or token == r"\ne" for _, token in shape.top_level(text))


def _read(text: str) -> _Set | None:
    parts = shape.split(text, r"\in")
    if len(parts) == 2 and shape.is_name(parts[0]):
        text = parts[1]
    without = shape.split(text, r"\ne")
    if len(without) == 2 and shape.is_name(without[0]):
        points = [_interval(value, value, "[", "]") for value in shape.split(without[1], ",", "or", "and")]
        return _joined([_interval(r"-\infty", r"\infty", "(", ")"), *points], [r"\setminus"] * len(points))
    return _composed(text, 0)


def _composed(text: str, depth: int) -> _Set | None:
    operators = [(place, token) for place, token in shape.top_level(text) if token in _OPERATORS]
    if len(operators) > _MAX_PARTS or depth > 6:
        return None
    begins = [0, *(place + len(token) for place, token in operators)]
    ends = [*(place for place, _ in operators), len(text)]
    parts = [_simple(text[begin:end].strip(), depth) for begin, end in zip(begins, ends, strict=True)]
    return _joined(parts, [token for _, token in operators])


def _joined(parts: Sequence[_Set | None], operators: Sequence[str]) -> _Set | None:
    """Several sets as one, from left to right."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts) or len(parts) > _MAX_PARTS + 1:
        return None

    def holds(place: Fraction) -> bool:
        found = known[0].holds(place)
        for operator, part in zip(operators, known[1:], strict=True):
            found = _OPERATORS[operator](found, part.holds(place))
        return found

    return _Set({end: text for part in known for end, text in part.ends.items()}, holds)


def _simple(text: str, depth: int) -> _Set | None:
    if text == r"\emptyset":
        return _Set({}, lambda place: False)
    inside = shape.bracketed(text)
    if inside is None:
        regions = (shape.read_region(text) or ("", []))[1]
        intervals = [_interval(one.low, one.high, one.opening, one.closing) for one in regions]
        return _joined(intervals, [r"\cup"] * (len(intervals) - 1))
    opening, content, closing = inside
    items = shape.split(content, ",")
    if opening in ("{", r"\{"):
        return _joined([_interval(item, item, "[", "]") for item in items], [r"\cup"] * (len(items) - 1))
    if len(items) == 2:
        return _interval(items[0], items[1], opening, closing)
    return _composed(content, depth + 1) if _is_composed(content) else None


def _interval(low: str, high: str, opening: str, closing: str) -> _Set | None:
    first, last = _end(low.strip()), _end(high.strip())
    if first is None or last is None or first > last or (first == last and (opening, closing) != ("[", "]")):
        return None  # (0, 0) is a point of the plane, not an empty interval
    closed = [end for end, bracket in ((first, opening), (last, closing)) if bracket in "[]"]
    return _Set({first: low, last: high}, lambda place: first < place < last or place in closed)


def _end(text: str) -> Fraction | None:
    if text in _INFINITE:
        return _INFINITE[text]
    value = real_value(text)
    return None if value is None else Fraction(round(value * _PRECISION), _PRECISION)
