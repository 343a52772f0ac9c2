"""Functions with pieces against a dense grid and brute force, and what decides where values do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor, gcd

import pytest

from covey.answers.maths.agree import agree

Function = Callable[[Fraction], Fraction]


def drawn(random_: random.Random) -> tuple[str, list[int], Callable[[list[int]], Function]]:
    """A random function with pieces: its LaTeX with places for numbers, these, and its values for any numbers."""
    kind = random_.randrange(7)
    text, make = [
        (r"|{}x-{}|", lambda n: lambda x: abs(n[0] * x - n[1])),
        (r"\lfloor \frac{{x+{}}}{{{}}} \rfloor", lambda n: lambda x: Fraction(floor((x + n[0]) / n[1]))),
        (r"\lceil \frac{{{}x-1}}{{{}}} \rceil", lambda n: lambda x: Fraction(ceil((n[0] * x - 1) / n[1]))),
        (r"\min({}x,{})", lambda n: lambda x: min(n[0] * x, Fraction(n[1]))),
        (r"\max(x-{},3-{}x)", lambda n: lambda x: max(x - n[0], 3 - n[1] * x)),
        (r"(({}x+1) \bmod {})", lambda n: lambda x: (n[0] * x + 1) % n[1]),
        (r"||x-{}|-{}|", lambda n: lambda x: abs(abs(x - n[0]) - n[1])),
    ][kind]
    return text, [random_.choice((1, 2, 3, 5, 8, 30, 120)) for _ in range(2)], make


def test_random_functions_with_pieces_agree_exactly_where_a_dense_grid_says_so() -> None:
    """The grid reaches beyond every breakpoint of these functions."""
    random_ = random.Random(5)
    grid = [Fraction(k, 7) for k in range(-2000, 2000, 3)] + [Fraction(k) for k in range(-260, 260)]
    equal = 0
    for _ in range(150):
        text, numbers, make = drawn(random_)
        others = list(numbers)
        others[random_.randrange(2)] += random_.choice((0, 1, 1, 2, 7))
        first, second = make(numbers), make(others)
        same = all(first(x) == second(x) for x in grid)
        equal += same
        written = text.format(*others) if others != numbers else rf"\frac{{{text.format(*others)}}}{{2}} \cdot 2"
        assert agree(text.format(*numbers), written) is same, (text, numbers, others)
    assert 20 <= equal <= 100


def test_divisors_of_whole_numbers() -> None:
    for one in range(2, 40):
        for other in (one, one + 1, 2 * one, 3 * one):
            same = all(gcd(n, one) == gcd(n, other) for n in range(1, 5000))
            assert agree(rf"\gcd(n,{one})", rf"\gcd({other},n)") is same, (one, other)


@pytest.mark.parametrize(
    ("gold", "prediction", "right"),
    [
        (r"\sqrt{-x^2-1}", r"\sqrt{-1-x^2}", True),  # no real value anywhere: compared by structure
        (r"\sqrt{-x^2-1}", r"\sqrt{-x^2-2}", False),
        (r"2^{10000000x+y}", r"2^{y+x \cdot 10000000}", True),  # too large everywhere
        (r"2^{10000000x}", r"2^{10000001x}", False),
        *(
            (rf"{base}^{{{base}00000{digit}x}}", rf"{base}^{{{base}00000{digit}1x}}", False)
            for base in (3, 5, 7)
            for digit in range(8)
        ),
        (r"k \sum_{k=1}^{n} k", r"\sum_{k=1}^{n} k \cdot k", False),  # the order counts
    ],
)
def test_where_too_few_places_have_values_structure_decides(gold: str, prediction: str, right: bool) -> None:
    assert agree(gold, prediction) is right


def test_a_function_that_ends_on_one_piece_of_another_is_not_it() -> None:
    r"""`\sqrt{5-x}^2` has values only where it is `|x-5|`."""
    assert not agree("|x-5|", r"\sqrt{5-x}^2")
    assert not agree(r"\ln|x-5|", r"\ln(5-x)")
    assert agree(r"\ln(x^2)", r"2\ln x")


def test_what_the_question_counts_is_a_unit() -> None:
    question = "Tom has 3 zorbles and 4 glimps. How many wild zorbles in base nine does he have, point by point?"
    assert agree("18", "18 zorbles", question)
    assert agree("18", "18 wild zorbles", question)
    assert not agree("18", "18 glomps", question)
    assert not agree("18", "18 base nine", question)
    assert not agree("18", "18 zorbles")
