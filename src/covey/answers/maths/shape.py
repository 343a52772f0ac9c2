r"""The shape of an answer (list, set, interval, equation, matrix, …), and whether it is in final form.

Functions of shapes take a tidied text and return its parts as texts, or None where the text has another shape.

An expression that is left to be evaluated (`92 + 88` for 180) matters where two answers are equal only by evaluation,
and the gold answer is a number or a constant in final form itself. Final are a number, a fraction, a mixed number, a
percentage, one root, power, factorial or binomial of plain numbers, `a \cdot 10^n`; and of other constants what
mathematicians leave: `16\pi/3`, `2 + 3i`, `\frac{1+\sqrt5}{2}`. A sum or product of which one line of arithmetic joins
two rational parts is not (`1 + 2 + \sqrt3`, `2 \cdot 3\pi`), nor is a quotient with a whole value, `48/2`; the fraction
`\frac{8}{2}` is. With the question at hand, an answer with an operator that is a piece of it states no result either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from covey.answers.maths import symbolic
from covey.answers.maths.expression import Node, constant, is_whole, unsigned, variables
from covey.answers.maths.notation import measured, read_number, tidy

_TOKEN = re.compile(
    r"\\begin\{\w+\*?\}|\\end\{\w+\*?\}|\\[a-zA-Z]+|\\.|[()\[\]{}]|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])|.", re.DOTALL
)
_OPENING = frozenset(("(", "[", "{", r"\{"))
_CLOSING = frozenset((")", "]", "}", r"\}"))
_DEPTHS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_PAIRS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}"}


@dataclass(frozen=True, slots=True)
class Collection:
    """Several values, or one in brackets."""

    opening: str
    """`(`, `[`, `{` for a set, or nothing for a bare list."""
    closing: str
    items: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """Whether the order of the values is part of the answer: in brackets it is, in braces and bare lists not."""
        return self.opening in ("(", "[")


@lru_cache(maxsize=256)
def top_level(text: str) -> tuple[tuple[int, str], ...]:
    """The tokens of a text outside of brackets, with their positions; outermost brackets are included."""
    depth, tokens = 0, []
    for found in _TOKEN.finditer(text):
        token = found.group()
        if token in _CLOSING or token.startswith(r"\end{"):
            depth = max(0, depth - 1)
        if depth == 0:
            tokens.append((found.start(), token))
        if token in _OPENING or token.startswith(r"\begin{"):
            depth += 1
    return tuple(tokens)


def depth(text: str) -> int:
    """How deeply a text nests brackets, closed or not."""
    return max(accumulate(_DEPTHS.get(character, 0) for character in text), default=0)


def split(text: str, *separators: str) -> list[str]:
    """The parts of a text between separators outside of brackets, stripped, without empty ones."""
    if not any(separator in text for separator in separators):
        return [text.strip()] if text.strip() else []
    parts, begin = [], 0
    for position, token in top_level(text):
        if token in separators:
            parts.append(text[begin:position])
            begin = position + len(token)
    return [part.strip() for part in (*parts, text[begin:]) if part.strip()]


def bracketed(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) of a text that is one pair of brackets, of any kinds."""
    opening = next((mark for mark in (r"\{", "(", "[", "{") if text.startswith(mark)), None)
    closing = next((mark for mark in (r"\}", ")", "]", "}") if text.endswith(mark)), None)
    if opening is None or closing is None or len(text) <= len(opening + closing):
        return None
    marks = [(position, token) for position, token in top_level(text) if token in _OPENING | _CLOSING]
    if marks[:1] != [(0, opening)] or marks[1:] != [(len(text) - len(closing), closing)]:
        return None
    return opening, text[len(opening) : -len(closing)].strip(), closing


@lru_cache(maxsize=1024)
def read_collection(text: str) -> Collection | None:
    r"""A list, tuple, set or interval; `a \pm b` counts as a list of two. None for a single value."""
    bare = _items(text)
    if len(bare) > 1:
        return Collection("", "", tuple(bare))
    inside = bracketed(text)
    if inside is None:
        return None
    opening, content, closing = inside
    items = _items(content)
    if opening in (r"\{", "{"):
        if len(items) == 1 and bracketed(items[0]) and not (opening == r"\{" and items[0].startswith(r"\{")):
            return read_collection(items[0]) or Collection("{", "}", tuple(items))
        return Collection("{", "}", tuple(items)) if items else None
    if len(items) < 2 and _PAIRS[opening] == closing and opening == "(":
        return read_collection(content)
    return Collection(opening, closing, tuple(items))


def _items(text: str) -> list[str]:
    parts = split(text, ";")
    if len(parts) < 2:
        parts = split(text, ",", "and", "or", r"\lor", r"\vee", r"\land", r"\wedge", "&")
    return [item for part in parts for item in _both_signs(part)]


def _both_signs(text: str) -> list[str]:
    r"""Both values of a text with `\pm` outside of brackets; `\mp` has the other sign."""
    if not _SIGNS.search(text) or ("," in text and not any(_SIGNS.match(token) for _, token in top_level(text))):
        return [text]
    plus, minus = {r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"}
    return [_SIGNS.sub(lambda sign: plus[sign[0]], text), _SIGNS.sub(lambda sign: minus[sign[0]], text)]


_SIGNS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")


_NAME = re.compile(r"(?:\\?[A-Za-z]|[|/:,()'{}\s^*]|\\[{}])+")
_NOT_IN_NAME = re.compile(
    r"\\(?:sin|cos|tan|cot|sec|csc|sqrt|log|ln|pi|infty|cdot|times|frac|sum|int|lim|not|neg|lnot)(?![a-zA-Z])"
)
_DENIED = re.compile(r"\\text\{\s*(?:not|no|or)\b|\\ne(?![a-z])", re.IGNORECASE)
_SUBSCRIPT = re.compile(r"_(?:\{[^{}]*\}|\\?\w)|\^(?:\\prime|\{\\prime\})|\\text\{[^{}]*\}")
_ARGUMENT = re.compile(r"(?<=[A-Za-z'])\s*\([\w,\s]*\)")
_RATIO_OF_NAMES = re.compile(r"\\frac\{[A-Za-z'\s]+\}\{[A-Za-z'\s]+\}")


@dataclass(frozen=True, slots=True)
class Named:
    """`x = 5`: a name and its value."""

    name: str
    value: str
    between: tuple[str, ...] = ()
    """The terms between them, as in `x = 2 + 3 = 5`."""


def is_name(text: str) -> bool:
    r"""Whether a left side only names something: `x`, `a_{n}`, `f(x)`, `|AB|`, `\frac{NO}{BO}`, `(p, q)`, `A : B`."""
    text = _RATIO_OF_NAMES.sub("AB", text.strip())
    bare = _ARGUMENT.sub("", _SUBSCRIPT.sub("", text))
    if _DENIED.search(text) or text.count("|") % 2:
        return False
    if not bare.strip():
        return bool(text)
    return "^" not in bare and "*" not in bare and not _NOT_IN_NAME.search(bare) and _NAME.fullmatch(bare) is not None


def read_named(text: str) -> Named | None:
    r"""`x = 5`, also as `5 = x`, as the chain `x = 2 + 3 = 5`, and as `x = 1/3 \approx 0.33` (the exact one counts)."""
    parts, _ = chain(text)
    members = split(text, r"\in")
    if len(members) == 2 and is_name(members[0]):
        return Named(members[0], members[1])
    if len(parts) > 1 and is_name(parts[0]):
        return Named(parts[0], parts[-1], tuple(parts[1:-1]))
    if len(parts) == 2 and is_name(parts[1]):
        return Named(parts[1], parts[0])
    return None


@lru_cache(maxsize=1024)
def chain(text: str) -> tuple[list[str], list[str]]:
    r"""The parts of `a = b = c \approx d` that are exact, and those that are rounded; a rounded value without an
    exact one counts as exact. Empty if the text is not such a chain."""
    if len(split(text, ",", ";", "and", "or")) > 1 or _compares(text):
        return [], []
    exact, *rounded = split(text, *_ABOUT) or [""]
    parts = split(exact, "=", r"\equiv")
    return (
        (parts, rounded) if len(parts) > 1 or not rounded or not is_name(exact) else ([exact, rounded[0]], rounded[1:])
    )


_ABOUT = (r"\approx", r"\simeq", r"\doteq")


def sides(text: str) -> tuple[str, str] | None:
    """The two sides of an equation."""
    parts = split(text, "=")
    return (parts[0], parts[1]) if len(parts) == 2 and not _compares(text) else None


MODULUS = re.compile(
    r"(?<=\S)\s*(?:\\pmod|\(\s*(?:\\text\{\s*mod\s*\}|\\?b?mod(?![a-z])))\s*\{?\s*([\w^+-]+)\s*\}?\s*\)?$"
)
r"""`\pmod{17}` and `(mod 17)` after a number."""


def relations(text: str) -> list[tuple[str, str, str]]:
    r"""The (in)equalities of `a < b \le c`, each as its sign and its two sides; empty where it has none."""
    signs = [_RELATIONS[token] for _, token in top_level(text) if token in _RELATIONS]
    parts = split(text, *_RELATIONS)
    return list(zip(signs, parts, parts[1:], strict=False)) if len(parts) == len(signs) + 1 else []


_COMPARISONS = {"<": "<", ">": ">", r"\le": "<=", r"\ge": ">="}
_RELATIONS = {**_COMPARISONS, r"\ne": "!="}


def _compares(text: str) -> bool:
    return any(token in _RELATIONS for _, token in top_level(text))


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, each as text; the brackets show whether the ends belong to it."""

    opening: str
    low: str
    high: str
    closing: str


_MINUS_INFINITY, _INFINITY = r"-\infty", r"\infty"


@lru_cache(maxsize=1024)
def read_region(text: str) -> tuple[str, list[Interval]] | None:
    r"""The variable and the intervals of `(0,1]`, `x \in [0,1]`, `0 < x \le 1`, or several joined by `\cup` or "or"."""
    name = ""
    parts = split(text, r"\in")
    if len(parts) == 2:
        name, text = parts
        if not is_name(name):
            return None
    if not name and any(token in _COMPARISONS for _, token in top_level(text)):
        chains = [_read_chain(part) for part in split(text, ",", ";", "or", r"\cup", r"\lor", r"\vee")]
        found = [chain for chain in chains if chain is not None]
        if len(found) < len(chains) or len({key for key, _ in found}) != 1:
            return None
        return _without_modulus(found[0][0], [interval for _, interval in found])
    pieces = [_read_interval(part) for part in split(text, r"\cup", "or")]
    intervals = [piece for piece in pieces if piece is not None]
    return (name, intervals) if intervals and len(intervals) == len(pieces) else None


def _read_interval(text: str) -> Interval | None:
    inside = bracketed(text)
    if inside is None or inside[0] not in "([" or inside[2] not in ")]":
        return None
    items = split(inside[1], ",", ";")
    return Interval(inside[0], items[0], items[1], inside[2]) if len(items) == 2 else None


def _read_chain(text: str) -> tuple[str, Interval] | None:
    operators = [_COMPARISONS[token] for _, token in top_level(text) if token in _COMPARISONS]
    parts = split(text, *_COMPARISONS)
    if len(parts) != len(operators) + 1:
        return None
    if len(parts) == 2:
        if not is_name(parts[0]):
            parts, operators = parts[::-1], [operators[0].translate(_FLIPPED)]
        if not is_name(parts[0]):
            return None
        closed = operators[0][1:]
        if operators[0][0] == "<":
            return parts[0], Interval("(", _MINUS_INFINITY, parts[1], "]" if closed else ")")
        return parts[0], Interval("[" if closed else "(", parts[1], _INFINITY, ")")
    if len(parts) != 3 or not is_name(parts[1]) or operators[0][0] != operators[1][0]:
        return None
    low, high, (left, right) = parts[0], parts[2], operators
    if left[0] == ">":
        low, high, left, right = high, low, right, left
    return parts[1], Interval("[" if left[1:] else "(", low, high, "]" if right[1:] else ")")


def _without_modulus(name: str, intervals: list[Interval]) -> tuple[str, list[Interval]]:
    """The region of `x` for a region of `|x|`."""
    inside = _MODULUS.fullmatch(name)
    if inside is None:
        return name, intervals
    unfolded = []
    for interval in intervals:
        low, high = (end if end.endswith(_INFINITY) else f"-({end})" for end in (interval.high, interval.low))
        low = _MINUS_INFINITY if low == _INFINITY else low
        opening, closing = _MIRRORED[interval.closing], _MIRRORED[interval.opening]
        if interval.low == _MINUS_INFINITY:
            unfolded.append(Interval(opening, low, interval.high, interval.closing))
        else:
            unfolded += [Interval(opening, low, high, closing), interval]
    return inside[1], unfolded


_MODULUS = re.compile(r"\|\s*([A-Za-z])\s*\|")
_MIRRORED = {"(": ")", ")": "(", "[": "]", "]": "["}
_FLIPPED = str.maketrans("<>", "><")
_MATRIX = re.compile(
    r"\\begin\{(?P<kind>[pbvBV]?(?:small)?matrix|array|cases|aligned)\*?\}(?P<body>.*)\\end\{(?P=kind)\*?\}", re.DOTALL
)


def read_matrix(text: str) -> tuple[str, list[list[str]]] | None:
    """The kind (`matrix`, `determinant` or `cases`) and the rows of a matrix, array or cases, the whole text."""
    inside = bracketed(text)
    if inside is not None and inside[1].startswith(r"\begin"):
        text = inside[1]
    if inside is not None and inside[0] == inside[1][:1] == "[":
        lists = [bracketed(row) for row in split(inside[1], ",")]
        return ("matrix", [split(row[1], ",") for row in lists if row is not None]) if None not in lists else None
    found = _MATRIX.fullmatch(text)
    if found is None or r"\begin" in found["body"]:
        return None
    rows = [
        [cell.strip() for cell in row.split("&")]
        for row in re.split(r"\\\\+(?:\s*\[[\d.]+(?:pt|em|ex|cm|mm)\])?", found["body"])
        if row.strip()
    ]
    if not rows:
        return None
    kind = "cases" if found["kind"] in ("cases", "aligned") else "matrix"
    return ("determinant" if found["kind"][0] in "vV" else kind), rows


_CLOCK = re.compile(
    r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(?:\\text\{)?\s*(?:([ap])\.?\s?m\.?)?\s*\}?", re.IGNORECASE | re.ASCII
)


def read_clock(text: str) -> int | None:
    """Seconds since midnight of `20:34`, `20:34:00` and `8:34 p.m.`."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    hour, half = int(found[1]), (found[4] or "").lower()
    if hour > 24 or int(found[2]) > 59 or int(found[3] or 0) > 59:
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return hour * 3600 + int(found[2]) * 60 + int(found[3] or 0)


def read_ratio(text: str) -> list[str] | None:
    """The parts of `7 : 32`."""
    parts = split(text, ":", r"\colon")
    return parts if len(parts) > 1 else None


_BASED = re.compile(r"\(?([0-9A-Z]+)\)?_\s*(?:\{\s*)?\(?(\d+)\)?(?:\s*\})?", re.ASCII)


def read_based(text: str) -> tuple[str, str] | None:
    """The digits and the base of `204_5`, `204_{(5)}` and `(3B)_{12}`; the base is empty for bare digits."""
    if text.isascii() and text.isalnum() and text.upper() == text and text[:1].isdigit():
        return text, ""
    found = _BASED.fullmatch(text)
    return (found[1], found[2]) if found and any(c.isdigit() for c in found[1]) else None


_CHOICE = re.compile(r"\(?\s*(?:\\text\{)?\s*(?:(?:[Oo]ption|[Cc]hoice)\s+)?\(?\s*([A-Ja-j])\s*\)?\s*\}?\s*\)?[.:)]?")
_CHOICE_AND_MORE = re.compile(
    r"(?:\\text\{\s*)?(?:\(\s*([A-J])\s*\)(?![(A-Za-z])(?:[:,](?=\s))?|([A-J])\s*[.:)])\s*\}?\s*(\S.*)", re.DOTALL
)
_NOT_AFTER_LETTER = re.compile(  # the letter is then part of an expression; `(C) -5` is a choice
    r"[+*/=^!,;:<>&|_)\]}]|\\(?:cdot|times|to|in|notin|infty|Rightarrow|implies|approx|sim|equiv|ne|[pm][mp]|c[ua]p|[gl]e|land"
    r"|lor|vee|wedge|\\)(?![a-zA-Z])|-(?!\s*\$?[\d.]+$)"
)
_OTHER_CHOICE = re.compile(
    r"(?<![A-Za-z\\])(?:[A-J](?![A-Za-z'_^])|[a-j][.)](?!\w)|(?:or|nor|not|no|and|wrong|incorrect|maybe)(?![a-z]))"
)


def read_choice(text: str) -> tuple[str, str] | None:
    """The letter of a multiple-choice answer (`C`, `(C)`, `C. 12`), in upper case, and the text after it."""
    if found := _CHOICE.fullmatch(text):
        return found[1].upper(), ""
    found = _CHOICE_AND_MORE.fullmatch(text)
    if found is None or _OTHER_CHOICE.search(found[3]) or _NOT_AFTER_LETTER.match(found[3]):
        return None
    return found[1] or found[2], found[3]


_RATIONAL = frozenset(
    ("add", "mul", "div", "neg", "pow", "factorial", "binom", "mod", "abs", "floor", "ceil", "max", "min")
)
_QUOTIENT = re.compile(r"[-+(\s]*[\d.,]+\)?\s*/[-+(\s]*[\d.,]+\)?", re.ASCII)
_OPERATOR = re.compile(
    r"(?<=[\w)\]}!%])\s*[-+](?![A-Za-z]{2})|[*|=]|/(?![A-Za-z]{2})|(?:[\d)}]|(?<![A-Za-z])[A-Za-z])!|\^(?!\\circ)"
    r"|\\(?:frac|sqrt|cdot|times|d?t?binom|choose|l?floor|l?ceil|b?mod|pm|mp|gcd|lcm|max|min|log|ln|exp"
    r"|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?)(?![a-zA-Z])"
)
_FRACTION = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
_NOTATION = (  # differences of notation between a question and an answer
    (re.compile(r"\\(?:cdot|times)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\text(?![a-zA-Z])|[\s{}()\[\]]"), ""),
)
_pending: ContextVar[list[str] | None] = ContextVar("pending", default=None)


@contextmanager
def final_form_required(pending: list[str] | None) -> Iterator[None]:
    """Inside, predictions must be in final form: those that equal the gold answer and are not are listed, and count
    as different. None waives it."""
    token = _pending.set(pending)
    try:
        yield
    finally:
        _pending.reset(token)


def admits_form(gold: str, prediction: str) -> bool:
    """Whether a prediction equal to the gold answer, both without units, is in final form."""
    pending = _pending.get()
    if pending is None or _is_final(gold, prediction):
        return True
    pending.append(prediction)
    return False


def _is_final(gold: str, prediction: str) -> bool:
    if _is_open(prediction) and not _is_open(gold):
        return False
    if read_number(prediction) is not None:
        return True
    target, node = symbolic.read(gold), symbolic.read(prediction)
    if target is None or node is None or variables(target):
        return True
    if read_number(gold) is not None and symbolic.expressions_agree(target, node):
        return _is_atom(node)
    return not _is_reduced(target) or _is_reduced(node)


def _is_open(text: str) -> bool:
    r"""Whether a number is written as a quotient that is not a fraction: `48/2`, `7.5/2`, but not `\frac{8}{2}`."""
    bare, is_fraction = text.translate({ord("{"): None, ord("}"): None}), r"\frac" in text
    number = read_number(text if is_fraction else bare)
    if number is None or not (is_fraction or _QUOTIENT.fullmatch(bare)):
        return False
    return "." in text or (number.value.denominator == 1 and not is_fraction)


def _are_plain(*nodes: Node) -> bool:
    return all(unsigned(node).op == "number" for node in nodes)


def _is_rational(node: Node) -> bool:
    """Whether a constant is rational by its form: numbers under arithmetic and whole powers."""
    if node.op == "pow" and not (_are_plain(node.args[1]) and is_whole(unsigned(node.args[1]))):
        return False
    return node.op == "number" or (node.op in _RATIONAL and all(map(_is_rational, node.args)))


def _is_atom(node: Node) -> bool:
    r"""A number, fraction, root, power, factorial or binomial of plain numbers, or `a \cdot 10^n`."""
    node = unsigned(node)
    match node.op, node.args:
        case "pow", (base, exponent):
            base = unsigned(base)
            return _are_plain(exponent, *(base.args if base.op == "div" else (base,)))
        case "mul", (first, second):
            one, other = (second, first) if second.op == "pow" else (first, second)
            return one.op == "pow" and one.args[0] == constant(10) and _are_plain(one.args[1], other)
    return node.op in ("number", "div", "root", "factorial", "binom") and _are_plain(*node.args)


def _is_reduced(node: Node) -> bool:
    """Whether no sum and no product of a constant has two parts that are rational by form; a mixed number is one."""
    if _is_rational(node):
        whole, *rest = node.args or (node,)
        mixed = node.op == "add" and len(rest) == 1 and is_whole(whole) and rest[0].op == "div"
        return _is_atom(node) or (mixed and _is_atom(rest[0]))
    parts = _parts(node, node.op) if node.op in ("add", "mul") else node.args
    return all(map(_is_reduced, parts)) and (node.op not in ("add", "mul") or sum(map(_is_rational, parts)) <= 1)


def _parts(node: Node, op: str) -> list[Node]:
    return [part for each in node.args for part in _parts(each, op)] if node.op == op else [node]


def is_copied(prediction: str, gold: str, question: str) -> bool:
    r"""Whether an answer has an operator (a sign is none), is a piece of the question, and is not the gold answer's own
    notation: `2^{10}` for "Compute 2^{10}"; `7/2` is the notation of `\frac{7}{2}`."""
    piece, own = _bare(prediction), _bare(gold)
    if not _OPERATOR.search(piece) or read_choice(tidy(gold)):
        return False
    piece = _normalised(piece)
    if not piece or piece == _normalised(own):
        return False
    before, after = (r"(?<![\d.])" if piece[0].isdigit() else "", r"(?!\.?\d)" if piece[-1].isdigit() else "")
    return re.search(before + re.escape(piece) + after, _of_question(question)) is not None


def needs_question(prediction: str) -> bool:
    """Whether the question may decide about a prediction: it has an operator (see `is_copied`), or words, which may be
    what the question counts."""
    return re.search(r"[A-Za-z]{2}", prediction) is not None or _OPERATOR.search(_bare(prediction)) is not None


def _bare(answer: str) -> str:
    """An answer without its name and unit."""
    text = tidy(answer)
    named = read_named(text)
    return measured(text if named is None else named.value).core


@lru_cache(maxsize=256)
def _of_question(question: str) -> str:
    return _normalised("\n".join(map(tidy, question.splitlines())))


def _normalised(text: str) -> str:
    text = _FRACTION.sub(r"\1/\2", text)
    for pattern, replacement in _NOTATION:
        text = pattern.sub(replacement, text)
    return text
