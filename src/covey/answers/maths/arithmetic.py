"""Arithmetic on exact fractions, on mpmath's real and complex numbers, and on matrices of them.

Every operation knows the size of its result before it computes it, and pays for it (`covey.answers.maths.budget`). What
is undefined, infinite, or too large has no value. Real numbers stay real unless complex ones are asked for:
`(-1)^{1/2}` then has no value.

The precision of an inexact number grows with the magnitudes of intermediate results. So what is smaller than half of
its digits is zero, and not a small difference: `1 - 2^{-200}` is not 1.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from covey.answers.maths.budget import spend

Value = Any
"""A `Fraction`, one of mpmath's real or complex numbers, or a `Matrix` of them."""

_MAX_EXACT_BITS = 70_000
_MAX_BITS = 1_200  # binary exponents of inexact numbers lie between plus and minus this
FIRST_PRECISION = 512
_FUNCTION_COST = 60.0  # microseconds at the first precision


class NoValueError(ArithmeticError):
    """The expression is undefined, infinite, too large, or contains something that is not computed."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The values of a matrix, row by row."""

    shape: tuple[int, ...]
    cells: tuple[Value, ...]


def is_zero(value: Value) -> bool:
    """Whether a value is zero."""
    return all(map(is_zero, value.cells)) if isinstance(value, Matrix) else value == 0


def is_real(value: Value) -> bool:
    """Whether a value is one real number."""
    return isinstance(value, Fraction) or hasattr(value, "_mpf_")


def as_fraction(value: Value) -> Fraction:
    """A real value, exactly as it was computed."""
    if isinstance(value, Fraction):
        return value
    sign, mantissa, exponent, _ = value._mpf_
    return Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** int(exponent)


_contexts = threading.local()  # mpmath's precision belongs to a context, and a context to a thread


def _context() -> Any:
    if not hasattr(_contexts, "one"):
        import mpmath

        _contexts.one = mpmath.MPContext()
    return _contexts.one


class Arithmetic:
    """The operations, at one precision in bits."""

    def __init__(self, precision: int, imaginary: bool) -> None:
        self._imaginary = imaginary
        self._mp = _context()
        self._mp.prec = precision
        self._cost = _FUNCTION_COST * (precision / FIRST_PRECISION) ** 1.4
        self._small = self._mp.ldexp(1, -precision // 2)
        self.largest = 0
        """The largest absolute binary exponent of the numbers so far."""

    def _constant(self, name: str) -> Value:
        if name == "i":
            if not self._imaginary:
                raise NoValueError
            return self._mp.mpc(0, 1)
        return +(self._mp.pi if name == "pi" else self._mp.e)

    def _inexact(self, value: Value) -> Value:
        """A value as mpmath's number."""
        if isinstance(value, Fraction):
            self._check_size(max(value.numerator.bit_length(), value.denominator.bit_length()))  # for 1 + 10^{-80} too
            return self._checked(self._mp.mpf(value.numerator) / value.denominator)
        return value

    def _checked(self, value: Value) -> Value:
        """A finite result, its magnitude recorded, without rounding noise in its real or imaginary part."""
        mp = self._mp
        if not mp.isfinite(value):
            raise NoValueError
        if isinstance(value, mp.mpc):
            if abs(value.imag) <= self._small * abs(value.real):
                value = value.real
            elif abs(value.real) <= self._small * abs(value.imag):
                value = mp.mpc(0, value.imag)
            if isinstance(value, mp.mpc) and not self._imaginary:
                raise NoValueError
        if value:
            self._check_size(abs(int(mp.mag(value))))
        return value

    def _check_size(self, bits: int) -> None:
        if bits > _MAX_BITS:
            raise NoValueError
        self.largest = max(self.largest, bits)

    def _rounded(self, value: Value) -> Value:
        """A result that may be zero: it is if it is smaller than half of the digits."""
        mp = self._mp
        if isinstance(value, mp.mpc):
            value = mp.mpc(*(part if abs(part) > self._small else 0 for part in (value.real, value.imag)))
        elif abs(value) <= self._small:
            return mp.zero
        return self._checked(value)

    def _pay_exact(self, bits: int) -> None:
        """Pay for an exact result of this size."""
        if bits > _MAX_EXACT_BITS:
            raise NoValueError
        spend(2.0 + 2e-6 * bits * bits)

    def _add(self, first: Value, second: Value) -> Value:
        if isinstance(first, Matrix) or isinstance(second, Matrix):
            if not (isinstance(first, Matrix) and isinstance(second, Matrix) and first.shape == second.shape):
                raise NoValueError
            return Matrix(first.shape, tuple(self._add(a, b) for a, b in zip(first.cells, second.cells, strict=True)))
        if isinstance(first, Fraction) and isinstance(second, Fraction):
            self._pay_exact(_bits(first) + _bits(second))
            return first + second
        return self._rounded(self._inexact(first) + self._inexact(second))

    def _multiply(self, first: Value, second: Value) -> Value:
        if isinstance(first, Matrix) and isinstance(second, Matrix):
            raise NoValueError
        if isinstance(first, Matrix):
            return Matrix(first.shape, tuple(self._multiply(cell, second) for cell in first.cells))
        if isinstance(second, Matrix):
            return self._multiply(second, first)
        if isinstance(first, Fraction) and isinstance(second, Fraction):
            self._pay_exact(_bits(first) + _bits(second))
            return first * second
        return self._checked(self._inexact(first) * self._inexact(second))

    def _inverse(self, value: Value) -> Value:
        if value == 0:
            raise NoValueError
        return 1 / value if isinstance(value, Fraction) else self._checked(1 / value)

    def _power(self, base: Value, exponent: Value) -> Value:
        whole = as_integer(exponent)
        if base == 0:
            if is_real(exponent) and exponent > 0:
                return Fraction(0)
            raise NoValueError
        if whole is not None and isinstance(base, Fraction):
            bits = _bits(base) * abs(whole) if abs(base) != 1 else 1
            if bits <= _MAX_EXACT_BITS:
                self._pay_exact(bits)
                return base**whole if abs(base) != 1 else base ** (whole % 2)
        if whole is None and is_real(base) and base < 0 and not self._imaginary:
            raise NoValueError
        spend((4 if is_real(base) and is_real(exponent) else 16) * self._cost)
        base, exponent = self._inexact(base), self._inexact(exponent)
        logarithm = self._mp.ln(abs(base)) * exponent
        self._bounded(logarithm)
        if whole is None or abs(whole) < 2**30:
            return self._checked(self._mp.power(base, exponent if whole is None else whole))
        if not is_real(base) or base < 0:
            raise NoValueError
        return self._checked(self._mp.exp(logarithm))

    def _bounded(self, exponent: Value) -> None:
        if abs(exponent.real) > _MAX_BITS:
            raise NoValueError

    def _root(self, base: Value, degree: Value) -> Value:
        number = as_integer(degree)
        if number is None or not 0 < number <= _MAX_BITS:
            return self._power(base, self._inverse(degree))
        if base == 0:
            return Fraction(0)
        if is_real(base) and base < 0 and number % 2:
            return self._multiply(Fraction(-1), self._root(self._multiply(Fraction(-1), base), degree))
        if number == 2 and isinstance(base, Fraction) and base > 0:
            self._pay_exact(_bits(base))
            above, below = math.isqrt(base.numerator), math.isqrt(base.denominator)
            if above * above == base.numerator and below * below == base.denominator:
                return Fraction(above, below)
        spend(self._cost)
        return self._checked(self._mp.root(self._inexact(base), number))


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def as_integer(value: Value) -> int | None:
    """A value that is a whole number; None where it is not."""
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else None
