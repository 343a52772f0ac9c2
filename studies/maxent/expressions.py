"""When two right answers count as one: the canonical form of an arithmetic expression.

Two expressions are the same answer when one becomes the other by changing the order of terms or factors, by moving
parentheses that make no difference, and by moving signs: `3+5`, `5+3` and `(5)+3` are one; so are `8-(3-2)` and
`8-3+2`, `6/(3/2)` and `6*2/3`, `(4-1)*(2-5)` and `(1-4)*(5-2)`. Nothing is multiplied out or worked out: `2*1` and
`2/1` stay two answers, and so do `2*3+2*4` and `2*(3+4)`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

_LEADING_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")


@dataclass(frozen=True, slots=True)
class _Number:
    value: int

    @property
    def text(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class _Sum:
    """Terms as (sign, text), in order."""

    terms: tuple[tuple[int, str], ...]

    @property
    def text(self) -> str:
        return "(" + "".join(("+" if sign > 0 else "-") + text for sign, text in self.terms) + ")"


@dataclass(frozen=True, slots=True)
class _Product:
    """Texts of the factors above and below the line, each in order."""

    above: tuple[str, ...]
    below: tuple[str, ...]

    @property
    def text(self) -> str:
        return "[" + "*".join(self.above) + "".join("/" + text for text in self.below) + "]"


_Signed = tuple[int, _Number | _Sum | _Product]


def canonical(expression: str) -> str:
    """A text that is the same for two expressions exactly when they count as one answer.

    Args:
        expression: whole numbers, + - * /, signs and parentheses; an `= value` at the end is left out.

    Raises:
        ValueError: it is nothing of the kind.
    """
    formula = _LEADING_ZEROS.sub("", expression.partition("=")[0].strip())
    try:
        sign, form = _signed(ast.parse(formula, mode="eval").body)
    except SyntaxError:
        raise ValueError(f"no arithmetic expression: {expression!r}") from None
    return form.text if sign > 0 else f"-{form.text}"


def _signed(node: ast.expr) -> _Signed:
    """The node as a sign and a form that is the same for a value's expression and its negative's."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return 1, _Number(value)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _signed(inner)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            sign, form = _signed(inner)
            return -sign, form
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            return _sum(_signed(left), _signed(right), 1 if isinstance(operator, ast.Add) else -1)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() as operator, right=right):
            return _product(_signed(left), _signed(right), divided=isinstance(operator, ast.Div))
    raise ValueError(f"no arithmetic expression: {ast.unparse(node)!r}")


def _sum(left: _Signed, right: _Signed, sign: int) -> _Signed:
    terms = _terms(*left) + _terms(sign * right[0], right[1])
    ordered, mirrored = (tuple(sorted((turn * one, text) for one, text in terms)) for turn in (1, -1))
    return (1, _Sum(ordered)) if ordered >= mirrored else (-1, _Sum(mirrored))


def _terms(sign: int, form: _Number | _Sum | _Product) -> list[tuple[int, str]]:
    if isinstance(form, _Sum):
        return [(sign * one, text) for one, text in form.terms]
    return [(sign, form.text)]


def _product(left: _Signed, right: _Signed, *, divided: bool) -> _Signed:
    above, below = _factors(left[1])
    more, less = _factors(right[1])
    if divided:
        more, less = less, more
    return left[0] * right[0], _Product(tuple(sorted((*above, *more))), tuple(sorted((*below, *less))))


def _factors(form: _Number | _Sum | _Product) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(form, _Product):
        return form.above, form.below
    return (form.text,), ()
