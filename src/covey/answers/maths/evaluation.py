"""The value of an expression: exact where arithmetic is, otherwise with enough digits to tell values apart.

What is undefined, infinite, or too large has no value, not even where it would cancel (`1 / infinity`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from covey.answers.maths.arithmetic import FIRST_PRECISION, Arithmetic, Matrix, NoValueError, Value, as_integer, is_real
from covey.answers.maths.budget import spend
from covey.answers.maths.expression import Node

_MAX_FACTORIAL = 2_500
_PASSES = 4


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

    precision = FIRST_PRECISION
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


class _Run(Arithmetic):
    """One pass over an expression, at one precision in bits."""

    def __init__(self, at: Mapping[str, Fraction], precision: int, imaginary: bool) -> None:
        super().__init__(precision, imaginary)
        self._at = at

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
        numbers = [as_integer(value) for value in values]
        self._pay_exact(sum(number.bit_length() for number in numbers if number is not None))
        if None in numbers or 0 in numbers:
            raise NoValueError
        return Fraction(function(*numbers))

    def _factorial(self, value: Value) -> Value:
        number = as_integer(value)
        if number is None or not 0 <= number <= _MAX_FACTORIAL:
            raise NoValueError
        spend(100.0)
        return Fraction(math.factorial(number))

    def _binomial(self, above: Value, below: Value) -> Value:
        total, chosen = as_integer(above), as_integer(below)
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
