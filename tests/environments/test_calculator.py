"""The calculator: exact values computed by hand, and every bound, so that no expression takes long or much."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

from corpus import Case, assert_verdicts, read_cases
from covey.environments.library import MAX_BITS, MAX_CHARACTERS, Calculator, calculator

CASES = read_cases(Path(__file__).with_name("calculator.jsonl"))


def test_values() -> None:
    assert_verdicts(CASES["value"], lambda case: calculator(case["expression"]))
    assert calculator("9" * 999) == "9" * 999


def test_what_it_cannot_do_is_said() -> None:
    def find(case: Case) -> str:
        result = calculator(case["expression"])
        says = result.startswith("error: ") and case["verdict"] in result and len(result) < 1300
        return case["verdict"] if says else result

    assert_verdicts(CASES["error"], find)
    too_long = {"expression": "9" * (MAX_CHARACTERS + 1), "verdict": f"at most {MAX_CHARACTERS}"}
    nested = {"expression": "(" * 400 + "1" + ")" * 400, "verdict": "not an arithmetic expression"}
    assert_verdicts([too_long, nested], find)


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
