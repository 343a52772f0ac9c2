"""The calculator: exact values computed by hand, and every bound, so that no expression takes long or much."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from covey.environments.library.calculator import MAX_BITS, MAX_CHARACTERS, Calculator, calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+2", "3"),
        ("12345*6789", "83810205"),
        ("2 + 3 * (4 - 1)", "11"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2**10", "1024"),
        ("2^10", "1024"),
        ("2**-2", "0.25"),
        ("-2**2", "-4"),
        ("2**3**2", "512"),
        ("0.1 + 0.2", "0.3"),
        ("1/8", "0.125"),
        ("-1/8", "-0.125"),
        ("10/4", "2.5"),
        ("6/3", "2"),
        ("1/3", "1/3 = about 0.333333333333"),
        ("-22/7", "-22/7 = about -3.14285714286"),
        ("0.12345678901234567890123 * 1", "0.12345678901234567890123"),
        ("1,234,567 + 1", "1234568"),
        ("007 + 1", "8"),
        ("100.0070", "100.007"),
        ("3 × 4 ÷ 2 − 1", "5"),
        ("1e3 + 1", "1001"),
        ("5 + 5 =", "10"),
        ("1\n+ 2", "3"),
        ("sqrt(144)", "12"),
        ("sqrt(1/4)", "0.5"),
        ("16**0.5", "4"),
        ("sqrt(2)", "1.41421356237"),
        ("8 ** (1/3)", "2"),
        ("abs(-3) + max(1, 2) + min(1, 2)", "6"),
        ("max(7)", "7"),
        ("round(2.567, 2)", "2.57"),
        ("0**0", "1"),
        ("1**(10**100)", "1"),
        ("(-1)**(10**50 + 1)", "-1"),
        ("0**(10**50)", "0"),
        ("9" * 999, "9" * 999),
    ],
)
def test_the_value(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1/0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0**-1", "division by zero"),
        ("9**9**9", "more than 4096 bits"),
        ("10**1000 * 10**1000", "more than 4096 bits"),
        ("2**-5000", "more than 4096 bits"),
        ("1e99999999999", "more than 4096 bits"),
        ("1e-99999999999", "more than 4096 bits"),
        ("9" * (MAX_CHARACTERS + 1), f"at most {MAX_CHARACTERS}"),
        ("(-8)**(1/3)", "not a real number"),
        ("sqrt(-1)", "no real square root"),
        ("", "empty"),
        (" = ", "empty"),
        ("1 +", "not an arithmetic expression"),
        ("1; 2", "not an arithmetic expression"),
        ("\x00", "not an arithmetic expression"),
        ("(" * 400 + "1" + ")" * 400, "not an arithmetic expression"),
        ("x + 1", "'x' is not arithmetic"),
        ("__import__('os').system('true')", "is not arithmetic"),
        ("'a' * 10**9", "'a'"),
        ("[1] * 10**9", "is not arithmetic"),
        ("1 if 1 else 2", "is not arithmetic"),
        ("1 << 10**9", "is not arithmetic"),
        ("True", "'True' is not arithmetic"),
        ("2j", "is not arithmetic"),
        ("1(2)", "is not arithmetic"),
        ("max()", "max does not take 0 numbers"),
        ("max(*[1])", "is not arithmetic"),
        ("round(1, 1000000)", "between -30 and 30"),
        ("abs(x=1)", "is not arithmetic"),
    ],
)
def test_what_it_cannot_do_is_said(expression: str, reason: str) -> None:
    result = calculator(expression)
    assert result.startswith("error: ")
    assert reason in result
    assert len(result) < 1300


def test_random_expressions_agree_with_fractions() -> None:
    draw = random.Random(0)

    def expression(depth: int) -> tuple[str, Fraction]:
        if depth == 0:
            number = draw.randint(0, 99)
            return str(number), Fraction(number)
        (a, x), (b, y) = expression(depth - 1), expression(depth - 1)
        sign = draw.choice("+-*/")
        if sign == "/" and not y:
            sign = "+"
        value = {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else x}[sign]
        return f"({a} {sign} {b})", value

    for _ in range(300):
        text, value = expression(draw.randint(1, 3))
        shown = calculator(text)
        assert Fraction(shown.partition(" = ")[0]) == value if "about" not in shown[:6] else value.denominator != 1


def test_random_text_neither_raises_nor_hangs() -> None:
    draw = random.Random(1)
    for _ in range(2000):
        calculator("".join(draw.choices("0123456789.+-*/%()^,e _xjmaxsqrt'\"[]:=\n", k=draw.randint(1, 60))))


def test_the_largest_values_stay_within_the_bound() -> None:
    assert calculator(f"2**{MAX_BITS - 1}") == str(2 ** (MAX_BITS - 1))
    assert calculator(f"2**{MAX_BITS + 1}").startswith("error")


def test_as_an_environment_it_is_the_same_tool() -> None:
    environment = Calculator()
    assert environment.reset(prompt="2 + 2?") is None
    assert environment.calculator("2+2") == "4"
    assert environment.calculator(expression="2+2") == "4"
