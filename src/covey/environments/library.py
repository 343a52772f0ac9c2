"""The environments and tools that come with Covey: a calculator, a game of guessing a number, and Python."""

from __future__ import annotations

import ast
import math
import random
import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from covey.sandbox import Execution, run_python
from covey.sandbox.session import MEMORY_MB, SECONDS

MAX_CHARACTERS = 1000
"""Longest expression."""
MAX_BITS = 4096
"""Largest numerator and denominator of any value on the way, in bits: about 1,200 digits."""
_MAX_SHOWN = 30  # digits of a decimal that is shown in full; others are rounded
_ROUNDED = 12  # significant digits of a rounded value

_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_THOUSANDS = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?![\d,])")
_LEADING_ZEROS = re.compile(r"(?<![\w.])0+(?=\d)")


def calculator(expression: str) -> str:
    """Work out an arithmetic expression exactly.

    Args:
        expression: The expression, with numbers, + - * / // % ** and parentheses.

    Returns:
        The value, or what is wrong with the expression.
    """
    try:
        return _value_shown(_value(_parsed(str(expression))))
    except _CannotError as problem:
        return f"error: {problem}"
    except ZeroDivisionError:
        return "error: division by zero"
    except RecursionError:
        return "error: the expression is nested too deeply"


class Calculator:
    """The calculator as an environment, for rows that choose among several; it has no state and no reward."""

    def reset(self, **row: Any) -> None:
        """Nothing to begin: the prompt is the row's own."""

    calculator = staticmethod(calculator)


class _CannotError(Exception):
    """What is wrong with an expression."""


def _parsed(text: str) -> ast.expr:
    """The expression, which is never executed."""
    if len(text) > MAX_CHARACTERS:
        raise _CannotError(f"the expression has {len(text)} characters, and at most {MAX_CHARACTERS} are read")
    text = text.translate(_SIGNS).replace("^", "**").strip().removesuffix("=").strip()
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    text = _LEADING_ZEROS.sub("", text)
    if not text:
        raise _CannotError("the expression is empty")
    source = f"({text}\n)"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about `1if`, which is an error here anyway
            tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError) as problem:
        raise _CannotError(f"{text!r} is not an arithmetic expression") from problem
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            node.value = ast.get_source_segment(source, node) or ""  # as it is written: the float is not exact
            node.kind = "decimal"
    return tree


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return _bounded(Fraction(number))
        case ast.Constant(value=str() as written, kind="decimal"):
            decimal = Decimal(written)
            if abs(decimal.adjusted()) > MAX_BITS:
                raise _CannotError(_TOO_LARGE)
            return _bounded(Fraction(decimal))
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.UnaryOp(op=ast.UAdd()):
            return _value(node.operand)
        case ast.BinOp(op=ast.Pow()):
            return _power(_value(node.left), _value(node.right))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _bounded(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return _call(name, [_value(argument) for argument in node.args])
    raise _CannotError(
        f"{ast.unparse(node)[:60]!r} is not arithmetic: write numbers, + - * / // % ** and parentheses, or one of "
        f"{', '.join(_FUNCTIONS)}"
    )


_TOO_LARGE = f"a number on the way has more than {MAX_BITS} bits, about {int(MAX_BITS * math.log10(2)):,} digits"


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _CannotError(_TOO_LARGE)
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent == Fraction(1, 2):
        return _root(base)
    if exponent.denominator == 1:
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if size > 1 and abs(exponent) * (size - 1) > MAX_BITS:
            raise _CannotError(_TOO_LARGE)
        if size <= 1:  # 0, 1 and -1: any power of them is cheap, once the exponent is small
            exponent = Fraction(int(exponent) % 2 or 2 * (exponent > 0)) if base or exponent > 0 else exponent
        return _bounded(base ** int(exponent))
    return _approximate(lambda: float(base) ** float(exponent))


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise _CannotError("a negative number has no real square root")
    exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return exact if exact**2 == value else _approximate(lambda: math.sqrt(value))


def _approximate(compute: Callable[[], float | complex]) -> Fraction:
    """A value that is no fraction, to as many digits as are shown."""
    try:
        result = compute()
    except OverflowError:
        raise _CannotError(_TOO_LARGE) from None
    if isinstance(result, complex) or not math.isfinite(result):
        raise _CannotError("the result is not a real number")
    return Fraction(f"{result:.{_ROUNDED}g}")


def _rounded(value: Fraction, digits: Fraction = Fraction(0)) -> Fraction:
    if digits.denominator != 1 or abs(digits) > _MAX_SHOWN:
        raise _CannotError(f"round takes a number of digits between -{_MAX_SHOWN} and {_MAX_SHOWN}")
    return Fraction(round(value, int(digits)))


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: lambda a, b: a % b,
}
_FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "abs": abs,
    "max": lambda first, *others: max(first, *others, first),
    "min": lambda first, *others: min(first, *others, first),
    "round": _rounded,
    "sqrt": _root,
}


def _call(name: str, arguments: list[Fraction]) -> Fraction:
    try:
        return _FUNCTIONS[name](*arguments)
    except TypeError:
        raise _CannotError(f"{name} does not take {len(arguments)} numbers") from None


def _value_shown(value: Fraction) -> str:
    """An integer or a short decimal exactly; another fraction with a decimal of 12 significant digits."""
    if value.denominator == 1:
        return str(value.numerator)
    digits = _decimals(value.denominator)
    if digits is not None and digits + len(str(abs(int(value)))) <= _MAX_SHOWN:
        scaled = str(abs(value.numerator) * 10**digits // value.denominator).rjust(digits + 1, "0")
        return f"{'-' * (value < 0)}{scaled[:-digits]}.{scaled[-digits:]}"
    rounded = f"{Decimal(value.numerator) / Decimal(value.denominator):.{_ROUNDED}g}"
    exact = f"{value.numerator}/{value.denominator}"
    return f"{exact} = about {rounded}" if len(exact) <= _MAX_SHOWN else f"about {rounded}"


def _decimals(denominator: int) -> int | None:
    """The digits after the point; None for a decimal that does not end."""
    counts = []
    for prime in (2, 5):
        count = 0
        while denominator % prime == 0:
            denominator, count = denominator // prime, count + 1
        counts.append(count)
    return max(counts) if denominator == 1 else None


class NumberGuess:
    """Find a hidden whole number. The reward is 1 for finding it, and up to 0.5 for narrowing it down.

    A column `secret` of the row is the hidden number; without one it is drawn from `random`, whose seed the trainer
    sets. Columns `low`, `high` and `guesses` override the settings.
    """

    def __init__(self, low: int = 1, high: int = 100, guesses: int = 8) -> None:
        """Set the rules.

        Args:
            low: Smallest hidden number.
            high: Largest hidden number.
            guesses: Guesses per game; 7 suffice for 100 numbers.

        Raises:
            ValueError: there is nothing to guess, or no guess.
        """
        _check_rules(low, high, guesses)
        self._settings = {"low": low, "high": high, "guesses": guesses}
        self._low, self._high, self._left = low, high, guesses
        self._least, self._most = low, high
        self._secret, self._found = low, False

    def reset(self, **row: Any) -> str:
        """Hide a number and tell the model the rules."""
        low, high, guesses = (_whole(row[n] if row.get(n) is not None else v) for n, v in self._settings.items())
        _check_rules(low, high, guesses)
        secret = random.randint(low, high) if row.get("secret") is None else _whole(row["secret"])
        if not low <= secret <= high:
            raise ValueError(f"secret={secret} is not between low={low} and high={high}")
        self._low, self._high, self._left = low, high, guesses
        self._least, self._most = low, high
        self._secret, self._found = secret, False
        return (
            f"I have hidden a whole number from {self._low} to {self._high}. Find it with the tool guess. You have "
            f"{self._left} guesses; each reply says whether the hidden number is higher or lower."
        )

    def guess(self, number: int) -> str:
        """Guess the hidden number.

        Args:
            number: The guess.

        Returns:
            Whether the hidden number is higher or lower, or the guess is right.
        """
        if self._found or not self._left:
            return "The game is over."
        guessed = _whole(number)
        self._left -= 1
        if guessed == self._secret:
            self._found = True
            return f"{guessed} is right. The game is over."
        if guessed < self._secret:
            self._least = max(self._least, guessed + 1)
        else:
            self._most = min(self._most, guessed - 1)
        hint = f"The number is {'higher' if guessed < self._secret else 'lower'} than {guessed}."
        left = f"{self._left} guess{'es' * (self._left > 1)} left" if self._left else "No guess is left"
        return f"{hint} {left}{'.' if self._left else f', it was {self._secret}.'}"

    def get_reward(self) -> float:
        """1 for the number; else half the share of the information found: 1 minus the ratio of the logarithms of how
        many numbers were still possible at the end and at the start."""
        if self._found:
            return 1.0
        everything = self._high - self._low + 1
        return 0.5 * (1 - math.log(self._most - self._least + 1) / math.log(everything))


def _check_rules(low: int, high: int, guesses: int) -> None:
    if low >= high:
        raise ValueError(f"low={low} must be below high={high}")
    if guesses < 1:
        raise ValueError(f"guesses={guesses} must be at least 1")


def _whole(value: Any) -> int:
    """A whole number, also as models and data write it: 5, 5.0, "5"."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{value!r} is not a whole number") from None
    if not number.is_integer():
        raise ValueError(f"{value!r} is not a whole number")
    return int(value) if isinstance(value, int) else int(number)


def python(code: str) -> str:
    """Run a Python program in a fresh interpreter and return what it prints.

    Args:
        code: The program. Nothing is kept from call to call.

    Returns:
        The output, with the value of a last line that is an expression; errors as Python shows them.
    """
    return _output_shown(run_python(str(code)))


class Python:
    """Python as an environment: the same tool with other limits. It has no state and no reward."""

    def __init__(self, seconds: float = SECONDS, memory_mb: int = MEMORY_MB) -> None:
        """Set the limits of a call.

        Args:
            seconds: Time of a program; stay below `environment.timeout`, which ends the episode.
            memory_mb: Megabytes that it may use.

        Raises:
            ValueError: one is not above zero.
        """
        if not (seconds > 0 and memory_mb > 0):
            raise ValueError(f"seconds={seconds} and memory_mb={memory_mb} must be above zero")
        self._seconds, self._memory_mb = seconds, memory_mb

    def reset(self, **row: Any) -> None:
        """Nothing to begin: the prompt is the row's own."""

    def python(self, code: str) -> str:
        """Run a Python program in a fresh interpreter and return what it prints.

        Args:
            code: The program. Nothing is kept from call to call.

        Returns:
            The output, with the value of a last line that is an expression; errors as Python shows them.
        """
        return _output_shown(run_python(str(code), seconds=self._seconds, memory_mb=self._memory_mb))


def _output_shown(execution: Execution) -> str:
    output = execution.output.rstrip("\n")
    if execution.status in ("timed_out", "killed") or (execution.status == "failed" and not output):
        return f"{output}\nerror: {execution.detail}".strip()
    return output or "(no output)"
