"""The value of an expression: exact where arithmetic is, otherwise with enough digits to tell values apart.

Work is counted, not timed, so that verdicts are reproducible: each operation knows the size of its result before it
computes it, and pays for it. What is undefined, infinite, or too large has no value, not even where it would cancel
(`1 / infinity`). Real numbers stay real unless complex ones are asked for: `(-1)^{1/2}` then has no value. The
precision of an inexact number grows with the magnitudes of intermediate results. So what is smaller than half of its
digits is zero, and not a small difference: `1 - 2^{-200}` is not 1.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from covey.answers.maths.expression import Node

# The unit of work is about a microsecond on a machine of 2026.
_left: ContextVar[float] = ContextVar("left", default=float("inf"))


class ExhaustedError(Exception):
    """The budget is used up."""


@contextmanager
def allowed(work: float) -> Iterator[None]:
    """Set the budget inside the block, in microseconds."""
    token = _left.set(work)
    try:
        yield
    finally:
        _left.reset(token)


def spend(work: float) -> None:
    """Pay for work before it is done. Raises an `ExhaustedError` if less is left."""
    left = _left.get() - work
    if left < 0:
        raise ExhaustedError
    _left.set(left)


Value = Any
"""A `Fraction`, one of mpmath's real or complex numbers, or a `Matrix` of them."""

_MAX_EXACT_BITS = 70_000
_MAX_BITS = 1_200  # binary exponents of inexact numbers lie between plus and minus this
_FIRST_PRECISION = 512
_MAX_FACTORIAL = 2_500
_PASSES = 4
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


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _as_integer(value: Value) -> int | None:
    """A value that is a whole number; None where it is not."""
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else None


def evaluate(node: Node, at: Mapping[str, Fraction] | None = None, imaginary: bool = False) -> Value:
    """The value of an expression.

    Args:
        node: the expression.
        at: the values of its variables.
        imaginary: whether complex numbers are allowed, in intermediate results too.

    Raises:
        NoValueError: it has none, or none that can be computed.
        ExhaustedError: it would need more work than is left.
    """
    from mpmath import libmp

    precision = _FIRST_PRECISION
    for _ in range(_PASSES):
        run = _Run(at or {}, precision, imaginary)
        found: Value = None
        try:
            found = run.value(node)
        except (ArithmeticError, ValueError, libmp.NoConvergence):  # mpmath's errors for "no value"
            found = None
        needed = 6 * run.largest + 212
        if needed <= precision:
            if found is None:
                raise NoValueError
            return found
        precision = needed
    raise NoValueError


def values_at(nodes: tuple[Node, ...], place: Mapping[str, Fraction], imaginary: bool) -> tuple[Value, ...]:
    """The values of expressions at a place; empty where one of them has none."""
    try:
        return tuple(evaluate(node, place, imaginary) for node in nodes)
    except NoValueError:
        return ()


_contexts = threading.local()  # mpmath's precision belongs to a context, and a context to a thread


class _Run:
    """One pass over an expression, at one precision in bits."""

    def __init__(self, at: Mapping[str, Fraction], precision: int, imaginary: bool) -> None:
        self._at = at
        self._imaginary = imaginary
        if not hasattr(_contexts, "one"):
            import mpmath

            _contexts.one = mpmath.MPContext()
        self._mp = _contexts.one
        self._mp.prec = precision
        self._cost = _FUNCTION_COST * (precision / _FIRST_PRECISION) ** 1.4
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
        whole = _as_integer(exponent)
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
        number = _as_integer(degree)
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

    def value(self, node: Node) -> Value:
        spend(3.0)
        match node.op:
            case "number":
                return node.value
            case "variable":
                return self._at[str(node.value)]
            case "constant":
                return self._constant(str(node.value))
            case "valueless":
                raise NoValueError
            case "matrix":
                assert isinstance(node.value, tuple)
                return Matrix(node.value, tuple(self._scalar(cell) for cell in node.args))
            case "add":
                total = self.value(node.args[0])
                for term in node.args[1:]:
                    total = self._add(total, self.value(term))
                return total
            case "neg":
                return self._multiply(Fraction(-1), self.value(node.args[0]))
            case "mul":
                product = self.value(node.args[0])
                for factor in node.args[1:]:
                    product = self._multiply(product, self.value(factor))
                return product
            case "div":
                return self._multiply(self.value(node.args[0]), self._inverse(self._scalar(node.args[1])))
            case "pow" if node.args[0].op == "constant" and node.args[0].value == "e":
                return self._exp(self._scalar(node.args[1]))
        return _FUNCTIONS[node.op](self, *(self._scalar(part) for part in node.args))

    def _scalar(self, node: Node) -> Value:
        found = self.value(node)
        if isinstance(found, Matrix):
            raise NoValueError
        return found

    def _exp(self, value: Value) -> Value:
        spend(self._cost)
        exponent = self._inexact(value)
        self._bounded(exponent)
        return self._checked(self._mp.exp(exponent))

    def _log(self, value: Value, base: Value | None = None) -> Value:
        if value == 0 or (is_real(value) and value < 0 and not self._imaginary):
            raise NoValueError
        spend(6 * self._cost)
        found = self._rounded(self._mp.ln(self._inexact(value)))
        return found if base is None else self._multiply(found, self._inverse(self._log(base)))

    def _elementary(self, name: str, value: Value) -> Value:
        spend((2 if is_real(value) else 8) * self._cost)
        argument = self._inexact(value)
        if name in ("sinh", "cosh") or not is_real(argument):
            self._bounded(abs(argument))
        return self._rounded(getattr(self._mp, name)(argument))

    def _tanh(self, value: Value) -> Value:
        square = self._exp(self._multiply(Fraction(2), value))  # shows how close to 1 it is
        return self._multiply(self._add(square, Fraction(-1)), self._inverse(self._add(square, Fraction(1))))

    def _inverse_sine(self, name: str, value: Value) -> Value:
        if is_real(value):
            excess = abs(value) - 1
            if excess > 0 and self._rounded(self._inexact(excess)) == 0:
                value = Fraction(1 if value > 0 else -1)
        return self._elementary(name, value)

    def _quotient(self, above: str, below: str, value: Value) -> Value:
        bottom = self._inverse(self._elementary(below, value))
        return self._multiply(self._elementary(above, value), bottom) if above else bottom

    def _arccot(self, value: Value) -> Value:
        quarter = self._multiply(self._constant("pi"), Fraction(1, 2))
        return self._add(quarter, self._multiply(Fraction(-1), self._elementary("atan", value)))

    def _floor(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            return Fraction(math.floor(value))
        if not is_real(value):
            raise NoValueError
        nearest = self._mp.nint(value)
        return Fraction(int(nearest if abs(value - nearest) <= self._small else self._mp.floor(value)))

    def _mod(self, value: Value, modulus: Value) -> Value:
        times = self._floor(self._multiply(value, self._inverse(modulus)))
        return self._add(value, self._multiply(-times, modulus))

    def _extreme(self, sign: int, *values: Value) -> Value:
        best = values[0]
        for value in values:
            if not (is_real(best) and is_real(value)):
                raise NoValueError
            gap = self._add(value, self._multiply(Fraction(-1), best))
            best = value if gap * sign > 0 else best
        return best

    def _divisor(self, function: Callable[..., int], *values: Value) -> Value:
        numbers = [_as_integer(value) for value in values]
        self._pay_exact(sum(number.bit_length() for number in numbers if number is not None))
        if None in numbers or 0 in numbers:
            raise NoValueError
        return Fraction(function(*numbers))

    def _factorial(self, value: Value) -> Value:
        number = _as_integer(value)
        if number is None or not 0 <= number <= _MAX_FACTORIAL:
            raise NoValueError
        spend(100.0)
        return Fraction(math.factorial(number))

    def _binomial(self, above: Value, below: Value) -> Value:
        total, chosen = _as_integer(above), _as_integer(below)
        if total is None or chosen is None or not 0 <= chosen <= total:
            raise NoValueError
        self._pay_exact(min(chosen, total - chosen) * total.bit_length())
        return Fraction(math.comb(total, chosen))


def _elementary(name: str) -> Callable[[_Run, Value], Value]:
    return lambda run, value: run._elementary(name, value)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: _elementary(name) for name in ("sin", "cos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")},
    "pow": _Run._power,
    "root": _Run._root,
    "exp": _Run._exp,
    "ln": _Run._log,
    "log": lambda run, value, base=Fraction(10): run._log(value, base),
    "tan": lambda run, value: run._quotient("sin", "cos", value),
    "cot": lambda run, value: run._quotient("cos", "sin", value),
    "sec": lambda run, value: run._quotient("", "cos", value),
    "csc": lambda run, value: run._quotient("", "sin", value),
    "asin": lambda run, value: run._inverse_sine("asin", value),
    "acos": lambda run, value: run._inverse_sine("acos", value),
    "asec": lambda run, value: run._inverse_sine("acos", run._inverse(value)),
    "acsc": lambda run, value: run._inverse_sine("asin", run._inverse(value)),
    "acot": _Run._arccot,
    "tanh": _Run._tanh,
    "abs": lambda run, value: abs(value) if isinstance(value, Fraction) else run._checked(abs(value)),
    "floor": _Run._floor,
    "ceil": lambda run, value: -run._floor(run._multiply(Fraction(-1), value)),
    "mod": _Run._mod,
    "max": lambda run, *values: run._extreme(1, *values),
    "min": lambda run, *values: run._extreme(-1, *values),
    "gcd": lambda run, *values: run._divisor(math.gcd, *values),
    "lcm": lambda run, *values: run._divisor(math.lcm, *values),
    "factorial": _Run._factorial,
    "binom": _Run._binomial,
}
