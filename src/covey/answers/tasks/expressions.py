"""When two arithmetic expressions are one answer: their canonical form; and reading them, never by `eval`.

Two expressions are one answer if one becomes the other by changing the order of terms or factors, by moving parentheses
that make no difference, and by moving signs: `3+5`, `5+3` and `(5)+3` are one; so are `8-(3-2)` and `8-3+2`, `6/(3/2)`
and `6*2/3`, `(4-1)*(2-5)` and `(1-4)*(5-2)`. Nothing is multiplied out or worked out: `2*1` and `2/1` stay two answers,
and so do `2*3+2*4` and `2*(3+4)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Protocol, Self, TypeVar

from covey.answers.maths.expression import Node, parse

_NUMBER_TEXT = r"\d{1,18}(?:\.\d{1,18})?(?![\d.])"
_ARITHMETIC = re.compile(  # numbers between operators: neither a product without its sign nor a power
    rf"(?:[-+(\s]{{0,100}}{_NUMBER_TEXT}[)\s]*(?:[-+*/](?=.)|$))+", re.ASCII | re.DOTALL
)
_SIGNS = str.maketrans("\u00d7\u00b7\u22c5\u2217\u00f7\u2215\u2212\u2013", "****//--")
_LATEX = {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\left": "", r"\right": "", "$": ""}


class UnreadableExpressionError(ValueError):
    """The text is not arithmetic, or is too long."""


class Arithmetic(Protocol):
    """What an expression is read into: numbers, or canonical forms."""

    def __add__(self, other: Self, /) -> Self: ...
    def __sub__(self, other: Self, /) -> Self: ...
    def __mul__(self, other: Self, /) -> Self: ...
    def __truediv__(self, other: Self, /) -> Self: ...
    def __neg__(self) -> Self: ...


T = TypeVar("T", bound=Arithmetic)


def read(expression: str, number: Callable[[Fraction], T]) -> tuple[T, str | None]:
    """An arithmetic expression, and the text after its equals sign; None without one.

    Args:
        expression: numbers, + - * / (or × ÷ −, or LaTeX's), signs and parentheses.
        number: what a number becomes, which decides what the expression is read into: `Fraction` gives its value, and
            `Form.of` its canonical form.

    Raises:
        UnreadableExpressionError: it is not arithmetic, or longer than 500 characters.
        ZeroDivisionError: it divides by zero; only where values are computed.
    """
    plain = expression.translate(_SIGNS)
    for mark, meant in _LATEX.items():
        plain = plain.replace(mark, meant)
    formula, equals, right = plain.strip().partition("=")
    node = parse(formula.rstrip()) if _ARITHMETIC.fullmatch(formula) else None
    if node is None:
        raise UnreadableExpressionError
    return _folded(node, number), right if equals else None


def _folded(node: Node, number: Callable[[Fraction], T]) -> T:
    if isinstance(node.value, Fraction):
        return number(node.value)
    found, *others = (_folded(part, number) for part in node.args)
    for other in others:
        found = found + other if node.op == "add" else found * other if node.op == "mul" else found / other
    return -found if node.op == "neg" else found


def canonical(expression: str) -> str:
    """A text that is the same for two expressions exactly when they are one answer; itself such an expression.

    Args:
        expression: as in `read`; what follows an equals sign is left out.

    Raises:
        UnreadableExpressionError: it is not arithmetic.
    """
    return str(read(expression, Form.of)[0])


_EXACT = Context(prec=80)  # of numbers with up to 18 digits before and after the point
_NUMBER, _SUM, _PRODUCT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Form:
    """The canonical form of an expression: equal ones are one answer.

    A sum is flat, and so is a product; no number, and no sum or product within a product, has a sign of its own, since
    signs are pulled out and multiplied. Where turning all its signs leaves a form as it is (`0`, `3-3`, `2*(3-3)`), it
    has none.
    """

    kind: int
    text: str
    """Of the form without its sign; equal texts are equal forms."""
    sign: int = 1
    parts: tuple[tuple[Form, ...], tuple[Form, ...]] = ((), ())
    """A sum's terms, with their signs, come first; a product's factors above the line, and those below."""
    even: bool = False
    """Whether it is its own negative."""

    @classmethod
    def of(cls, number: Fraction) -> Form:
        """A number, which is not negative."""
        exact = _EXACT.divide(Decimal(number.numerator), Decimal(number.denominator))
        return cls(_NUMBER, f"{exact.normalize(_EXACT):f}", even=number == 0)

    @property
    def divided(self) -> bool:
        """Whether it is a quotient."""
        return self.kind == _PRODUCT and bool(self.parts[1])

    def __neg__(self) -> Form:
        return self if self.even else Form(self.kind, self.text, -self.sign, self.parts, self.even)

    def __add__(self, other: Form) -> Form:
        return _sum([*self._terms(), *other._terms()])

    def __sub__(self, other: Form) -> Form:
        return self + -other

    def __mul__(self, other: Form) -> Form:
        (above, below), (more, less) = self._factors(), other._factors()
        return _product(self.sign * other.sign, (*above, *more), (*below, *less))

    def __truediv__(self, other: Form) -> Form:
        (above, below), (less, more) = self._factors(), other._factors()
        return _product(self.sign * other.sign, (*above, *more), (*below, *less))

    def __str__(self) -> str:
        if self.kind == _SUM:
            return _sum_text(sorted(self._terms(), key=_order))
        return self.text if self.sign > 0 else f"-{self.text}"

    def _terms(self) -> list[Form]:
        if self.kind != _SUM:
            return [self]
        return [term if self.sign > 0 else -term for term in self.parts[0]]

    def _factors(self) -> tuple[tuple[Form, ...], tuple[Form, ...]]:
        return self.parts if self.kind == _PRODUCT else ((self if self.sign > 0 else -self,), ())


def _sum(terms: Iterable[Form]) -> Form:
    """The sum of terms that are no sums."""
    plain = sorted(terms, key=_order)
    mirrored = sorted((-term for term in plain), key=_order)
    texts, other = _sum_text(plain), _sum_text(mirrored)
    even = texts == other
    if not even and ([-t.sign for t in plain], texts) > ([-t.sign for t in mirrored], other):
        return Form(_SUM, other, -1, (tuple(mirrored), ()))
    return Form(_SUM, texts, 1, (tuple(plain), ()), even)


def _product(sign: int, above: Iterable[Form], below: Iterable[Form]) -> Form:
    """The product of factors without signs that are no products."""
    parts = tuple(sorted(above, key=_order)), tuple(sorted(below, key=_order))
    text = "*".join(map(_factor, parts[0])) + "".join(f"/{_factor(one)}" for one in parts[1])
    even = any(factor.even for factor in (*parts[0], *parts[1]))
    return Form(_PRODUCT, text, 1 if even else sign, parts, even)


def _order(form: Form) -> tuple[int, int, str]:
    """Positive terms first; numbers by size, then sums and products by length."""
    return -form.sign, len(form.text), form.text


def _factor(form: Form) -> str:
    return f"({form.text})" if form.kind == _SUM else form.text


def _sum_text(terms: Iterable[Form]) -> str:
    return "".join(("+" if term.sign > 0 else "-") + term.text for term in terms).removeprefix("+")
