r"""Sets of real numbers: unions, intersections and differences of intervals and points.

The ends of all intervals divide the real line into points and gaps; a set is a list of these.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from covey.answers.maths import final_form, structure
from covey.answers.maths.symbolic import expressions_agree, read, real_value

_OPERATORS: dict[str, Callable[[bool, bool], bool]] = {
    r"\cup": lambda left, right: left or right,
    r"\cap": lambda left, right: left and right,
    r"\setminus": lambda left, right: left and not right,
    r"\backslash": lambda left, right: left and not right,
}
_INFINITE = {r"\infty": float("inf"), r"-\infty": float("-inf")}
_NEAR = Fraction(1, 2**120)
_MAX_PARTS = 64
End = tuple[Fraction | float, str]  # its computed value, and its text, which tells close ones apart
Interval = tuple[End, End, bool, bool]  # from, to, and whether the ends belong to it
Tree = Interval | tuple[str, "Tree", "Tree"]


def sets_agree(gold: str, prediction: str) -> bool | None:
    r"""Whether two texts describe the same set of numbers; None where neither uses `\cup`, `\cap`, `\setminus`, `\ne`,
    or one is not a set of numbers."""
    if not (_is_composed(gold) or _is_composed(prediction)):
        return None
    first, second = _read(gold), _read(prediction)
    if first is None or second is None:
        return None
    ours, theirs = _ends(first), _ends(second)
    ends = _distinct(ours + theirs)
    if _members(first, ends) != _members(second, ends):
        return False
    equal = [(text, mine) for end, text in theirs for value, mine in ours if value == end and mine != text]
    return all(final_form.admits(mine, text) for text, mine in equal)


def _is_composed(text: str) -> bool:
    return any(token in _OPERATORS or token == r"\ne" for _, token in structure.top_level(text))


def _read(text: str) -> Tree | None:
    parts = structure.split(text, r"\in")
    if len(parts) == 2 and structure.is_name(parts[0]):
        text = parts[1]
    without = structure.split(text, r"\ne")
    if len(without) == 2 and structure.is_name(without[0]):
        points = _union([_interval(value, value, "[", "]") for value in structure.split(without[1], ",", "or", "and")])
        everything: Tree = ((float("-inf"), ""), (float("inf"), ""), False, False)
        return None if points is None else (r"\setminus", everything, points)
    return _composed(text, 0)


def _composed(text: str, depth: int) -> Tree | None:
    operators = [(place, token) for place, token in structure.top_level(text) if token in _OPERATORS]
    if len(operators) > _MAX_PARTS or depth > 6:
        return None
    begin, pending, found = 0, "", None
    for place, token in (*operators, (len(text), "")):
        part = _simple(text[begin:place].strip(), depth)
        if part is None:
            return None
        found = part if found is None else (pending, found, part)
        begin, pending = place + len(token), token
    return found


def _simple(text: str, depth: int) -> Tree | None:
    if text == r"\emptyset":
        return (Fraction(0), "0"), (Fraction(0), "0"), False, False
    inside = structure.bracketed(text)
    if inside is None:
        region = structure.read_region(text)
        return _union([_interval(one.low, one.high, one.opening, one.closing) for one in region[1]]) if region else None
    opening, content, closing = inside
    items = structure.split(content, ",")
    if opening in ("{", r"\{"):
        return _union([_interval(item, item, "[", "]") for item in items])
    if len(items) == 2:
        return _interval(items[0], items[1], opening, closing)
    return _composed(content, depth + 1) if _is_composed(content) else None


def _union(intervals: list[Interval | None]) -> Tree | None:
    found: Tree | None = None
    for interval in intervals[:_MAX_PARTS]:
        if interval is None:
            return None
        found = interval if found is None else (r"\cup", found, interval)
    return found if len(intervals) <= _MAX_PARTS else None


def _interval(low: str, high: str, opening: str, closing: str) -> Interval | None:
    first, last = (_INFINITE[end] if end in _INFINITE else real_value(end) for end in (low.strip(), high.strip()))
    if first is None or last is None or first > last or (first == last and (opening, closing) != ("[", "]")):
        return None  # (0, 0) is a point of the plane, not an empty interval
    return (first, low), (last, high), opening == "[", closing == "]"


def _ends(tree: Tree) -> list[End]:
    if len(tree) == 3:
        return _ends(tree[1]) + _ends(tree[2])
    return [tree[0], tree[1]]


def _distinct(ends: list[End]) -> list[End]:
    found: list[End] = []
    for end in sorted(ends):
        if not found or not _equal(found[-1], end):
            found.append(end)
    return found


def _equal(first: End, second: End) -> bool:
    (one, text), (other, its) = first, second
    if one == other or isinstance(one, float) or isinstance(other, float):
        return one == other
    if abs(one - other) > _NEAR * max(abs(one), abs(other)):
        return False
    nodes = read(text), read(its)
    return nodes[0] is not None and nodes[1] is not None and expressions_agree(nodes[0], nodes[1])


def _members(tree: Tree, ends: list[End]) -> list[bool]:
    """For each end, and for the gap after it, whether it belongs to the set."""
    if len(tree) == 3:
        left, right = _members(tree[1], ends), _members(tree[2], ends)
        return [_OPERATORS[tree[0]](one, other) for one, other in zip(left, right, strict=True)]
    low, high, *closed = tree
    first, last = (next(i for i, end in enumerate(ends) if _equal(end, value)) for value in (low, high))
    found: list[bool] = []
    for i, _ in enumerate(ends):
        if first == last:
            found += [i == first and all(closed), False]
        else:
            inside = first < i < last or (i == first and closed[0]) or (i == last and closed[1])
            found += [bool(inside), first <= i < last]
    return found
