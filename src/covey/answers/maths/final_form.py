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
from functools import lru_cache

from covey.answers.maths import structure, symbolic
from covey.answers.maths.expression import Node, constant, is_whole, unsigned, variables
from covey.answers.maths.latex import tidy
from covey.answers.maths.numbers import read_number
from covey.answers.maths.quantity import measured

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
def required(pending: list[str] | None) -> Iterator[None]:
    """Inside, predictions must be in final form: those that equal the gold answer and are not are listed, and count
    as different. None waives it."""
    token = _pending.set(pending)
    try:
        yield
    finally:
        _pending.reset(token)


def admits(gold: str, prediction: str) -> bool:
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
    piece, own = _value(prediction), _value(gold)
    if not _OPERATOR.search(piece) or structure.read_choice(tidy(gold)):
        return False
    piece = _normalised(piece)
    if not piece or piece == _normalised(own):
        return False
    before, after = (r"(?<![\d.])" if piece[0].isdigit() else "", r"(?!\.?\d)" if piece[-1].isdigit() else "")
    return re.search(before + re.escape(piece) + after, _of_question(question)) is not None


def needs_question(prediction: str) -> bool:
    """Whether the question may decide about a prediction: it has an operator (see `is_copied`), or words, which may be
    what the question counts."""
    return re.search(r"[A-Za-z]{2}", prediction) is not None or _OPERATOR.search(_value(prediction)) is not None


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
