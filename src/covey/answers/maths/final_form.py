r"""Whether an answer is in final form, or an expression that is left to be evaluated: `92 + 88` for 180.

It matters where two answers are equal only by evaluation, and the gold answer is a number or a constant in final form
itself. Final are a number, a fraction, a mixed number, a percentage, one root, power, factorial or binomial of plain
numbers, `a \cdot 10^n`; and of other constants what mathematicians leave: `16\pi/3`, `2 + 3i`, `\frac{1+\sqrt5}{2}`. A
sum or product of which one line of arithmetic joins two rational parts is not (`1 + 2 + \sqrt3`, `2 \cdot 3\pi`), nor
is a quotient with a whole value, `48/2`; the fraction `\frac{8}{2}` is.

With the question at hand, an answer with an operator that is a piece of it states no result either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache

from covey.answers.maths import structure, symbolic
from covey.answers.maths.expression import Node, variables
from covey.answers.maths.latex import tidy
from covey.answers.maths.numbers import read_number
from covey.answers.maths.quantity import measured

_RATIONAL = frozenset(
    ("add", "mul", "div", "neg", "pow", "factorial", "binom", "mod", "abs", "floor", "ceil", "max", "min")
)
_QUOTIENT = re.compile(r"[-+(\s]*[\d.,]+\)?\s*/[-+(\s]*[\d.,]+\)?", re.ASCII)
_OPERATOR = re.compile(
    r"(?<=[\w)\]}!%])\s*[-+](?![A-Za-z]{2})|[*|=]|/(?![A-Za-z]{2})|(?:[\d)}]|(?<![A-Za-z])[A-Za-z])!|\^(?!\\circ)|\\(?:frac|sqrt|cdot|times|d?t?binom|choose|l?floor|l?ceil|b?mod|pm|mp|gcd|lcm"
    r"|max|min|log|ln|exp|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?)(?![a-zA-Z])"
)
_FRACTION = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
_NOTATION = (  # differences of notation between a question and an answer
    (re.compile(r"\\(?:cdot|times)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\text(?![a-zA-Z])|[\s{}()\[\]]"), ""),
)
_pending: ContextVar[list[str] | None] = ContextVar("pending", default=None)


@contextmanager
def required() -> Iterator[list[str]]:
    """Inside, predictions must be in final form. Gives the list of those that are equal to the gold answer and not."""
    found: list[str] = []
    token = _pending.set(found)
    try:
        yield found
    finally:
        _pending.reset(token)


@contextmanager
def waived() -> Iterator[None]:
    """Inside, predictions may have any form."""
    token = _pending.set(None)
    try:
        yield
    finally:
        _pending.reset(token)


def admits_quotient(gold: str, prediction: str) -> bool:
    """Whether a prediction equal to the gold answer, both without units, is final as a number."""
    return _pending.get() is None or not _is_open(prediction) or _is_open(gold) or _put_off(prediction)


def admits(gold: str, prediction: str) -> bool:
    """Whether a prediction equal to the gold answer, both expressions without units, is in final form."""
    if _pending.get() is None:
        return True
    target, node = symbolic.read(gold), symbolic.read(prediction)
    if target is None or node is None or variables(target):
        return True
    number = read_number(gold)
    if number is not None and symbolic.expressions_agree(target, node):
        final = _is_atom(node) and not _is_open(prediction)
    else:
        final = not _is_reduced(target) or _is_reduced(node)
    return final or _put_off(prediction)


def _put_off(prediction: str) -> bool:
    pending = _pending.get()
    assert pending is not None
    pending.append(prediction)
    return False


def _is_open(text: str) -> bool:
    r"""Whether a number is written as a quotient that is not a fraction: `48/2`, `7.5/2`, but not `\frac{8}{2}`."""
    if not _QUOTIENT.fullmatch(text):
        return False
    number = read_number(text)
    return number is not None and (number.value.denominator == 1 or "." in text)


def _bare(node: Node) -> Node:
    return _bare(node.args[0]) if node.op == "neg" else node


def _is_plain(node: Node) -> bool:
    return _bare(node).op == "number"


def _is_rational(node: Node) -> bool:
    """Whether a constant is rational by its form: numbers under arithmetic and whole powers."""
    if node.op == "pow" and not (_is_plain(node.args[1]) and _whole(_bare(node.args[1]))):
        return False
    return node.op == "number" or (node.op in _RATIONAL and all(map(_is_rational, node.args)))


def _whole(node: Node) -> bool:
    return isinstance(node.value, Fraction) and node.value.denominator == 1


def _is_atom(node: Node) -> bool:
    r"""A number, fraction, mixed number, root, power, factorial or binomial of plain numbers, or `a \cdot 10^n`."""
    node = _bare(node)
    match node.op:
        case "number":
            return True
        case "div" | "root" | "factorial" | "binom":
            return all(map(_is_plain, node.args))
        case "pow":
            base = _bare(node.args[0])
            return _is_plain(node.args[1]) and (
                _is_plain(base) or (base.op == "div" and all(map(_is_plain, base.args)))
            )
        case "mul" if len(node.args) == 2:
            ten = Node("number", value=Fraction(10))
            pairs = (node.args, node.args[::-1])
            return any(
                one.op == "pow" and one.args[0] == ten and _is_plain(one.args[1]) and _is_plain(other)
                for one, other in pairs
            )
    return False


def _is_reduced(node: Node) -> bool:
    """Whether no sum and no product of a constant has two parts that are rational by form."""
    if _is_rational(node):
        return _is_atom(node) or _is_mixed(node)
    parts = _parts(node, node.op) if node.op in ("add", "mul") else node.args
    if node.op in ("add", "mul") and sum(map(_is_rational, parts)) > 1:
        return False
    return all(map(_is_reduced, parts))


def _is_mixed(node: Node) -> bool:
    """Whether a sum is what the parser makes of a mixed number."""
    whole, *rest = node.args or (node,)
    return (
        node.op == "add"
        and len(rest) == 1
        and whole.op == "number"
        and _whole(whole)
        and rest[0].op == "div"
        and _is_atom(rest[0])
    )


def _parts(node: Node, op: str) -> list[Node]:
    return [part for each in node.args for part in _parts(each, op)] if node.op == op else [node]


def is_copied(prediction: str, gold: str, question: str) -> bool:
    r"""Whether an answer has an operator (a sign is none), is a piece of the question, and is not the gold answer's own
    notation: `2^{10}` for "Compute 2^{10}"; `7/2` is the notation of `\frac{7}{2}`."""
    piece, own = _value(prediction), _value(gold)
    if not _OPERATOR.search(piece) or structure.read_choice(tidy(gold)):
        return False
    piece = _normalised(piece)
    if not piece or piece == _normalised(own):
        return False
    before, after = (r"(?<![\d.])" if piece[0].isdigit() else "", r"(?!\.?\d)" if piece[-1].isdigit() else "")
    return re.search(before + re.escape(piece) + after, _of_question(question)) is not None


def has_operator(prediction: str) -> bool:
    """Whether the question may decide about a prediction, see `is_copied`."""
    return _OPERATOR.search(_value(prediction)) is not None


def _value(answer: str) -> str:
    """An answer without its name and unit."""
    text = tidy(answer)
    named = structure.read_named(text)
    return measured(text if named is None else named.value).core


@lru_cache(maxsize=256)
def _of_question(question: str) -> str:
    return _normalised("\n".join(map(tidy, question.splitlines())))


def _normalised(text: str) -> str:
    text = _FRACTION.sub(r"\1/\2", text)
    for pattern, replacement in _NOTATION:
        text = pattern.sub(replacement, text)
    return text
