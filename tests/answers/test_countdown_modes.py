"""Every right answer of a countdown problem: against all binary trees, each evaluated and canonicalised by its text."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import permutations
from math import factorial

import pytest

from covey.answers import tasks
from covey.answers.tasks import all_countdown_modes, canonical, count_countdown_modes, countdown_modes, evaluate
from covey.rewards import RewardSettings, find


def trees(numbers: tuple[int, ...]) -> Iterator[str]:
    """All fully bracketed expressions of the numbers in this order."""
    if len(numbers) == 1:
        yield str(numbers[0])
    for split in range(1, len(numbers)):
        for left in trees(numbers[:split]):
            for right in trees(numbers[split:]):
                yield from (f"({left}{operator}{right})" for operator in "+-*/")


def value(node: ast.expr) -> Fraction | None:
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    assert isinstance(node, ast.BinOp)
    left, right = value(node.left), value(node.right)
    if left is None or right is None:
        return None
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
    return left / right if right else None


@cache
def by_value(numbers: tuple[int, ...]) -> tuple[dict[Fraction, Counter[str]], int]:
    """The canonical forms of all expressions of the numbers, counted, by value; and how many expressions there are."""
    found: dict[Fraction, Counter[str]] = {}
    total = 0
    for order in permutations(range(len(numbers))):
        for text in trees(tuple(numbers[at] for at in order)):
            total += 1
            reached = value(ast.parse(text, mode="eval").body)
            if reached is not None:
                found.setdefault(reached, Counter())[canonical(text)] += 1
    return found, total


@pytest.mark.parametrize(
    "numbers", [(3, 5), (4, 4), (1, 2, 3), (2, 2, 6), (5, 5, 5), (9, 4, 6), (3, 3, 4, 4), (1, 3, 4, 6)]
)
def test_the_modes_and_their_chances_are_those_of_all_expressions(numbers: tuple[int, ...]) -> None:
    found, total = by_value(numbers)
    assert total == factorial(2 * len(numbers) - 2) // factorial(len(numbers) - 1) * 4 ** (len(numbers) - 1)
    rng = random.Random(0)
    targets = rng.sample(sorted(found), min(len(found), 25))
    for target in [Fraction(0), Fraction(24), *targets]:
        modes = all_countdown_modes(tuple(Fraction(one) for one in sorted(numbers)), target)
        counts = {mode: round(chance * total) for mode, chance in modes.items()}
        assert {mode: count for mode, count in counts.items() if count} == dict(found.get(target, Counter()))
        for mode in modes:  # also those that only a leading sign reaches
            assert canonical(mode) == mode
            assert evaluate(mode)[0] == target
            assert sorted(evaluate(mode)[1]) == sorted(numbers)


def test_every_accepted_text_is_exactly_one_mode() -> None:
    """Random spellings, with signs, brackets and spaces that a tree does not have."""
    rng = random.Random(1)
    grade = find("countdown", RewardSettings()).sample
    assert grade is not None
    met: dict[str, set[str]] = {}
    for _ in range(4000):
        numbers = [rng.randint(1, 6) for _ in range(rng.randint(2, 4))]
        text = spelled(numbers, rng)
        try:
            reached, used, _ = evaluate(text)
        except ZeroDivisionError:
            continue
        if reached.denominator != 1 or len(used) != len(numbers):
            continue
        gold = {"numbers": numbers, "target": int(reached)}
        graded = grade(f"<answer>{text}</answer>", {"answer": gold})
        assert (graded.value, graded.mode) == (1.0, canonical(text)), text
        modes = countdown_modes(gold)
        assert modes is not None
        assert graded.mode in modes, (text, gold)
        met.setdefault(f"{sorted(numbers)} {reached}", set()).add(str(graded.mode))
    assert max(map(len, met.values())) > 1


def spelled(numbers: list[int], rng: random.Random) -> str:
    """A random expression of these numbers, each once, in random order."""
    if len(numbers) == 1:
        return rng.choice(["{}", "{}", " {} ", "({})", "-{}", "+{}", "-(-{})"]).format(numbers[0])
    rng.shuffle(numbers)
    split = rng.randint(1, len(numbers) - 1)
    left, right = spelled(numbers[:split], rng), spelled(numbers[split:], rng)
    form = rng.choice(["{}{}{}", "({}{}{})", "-({}{}{})", "({}){}({})"])
    return form.format(left, rng.choice("+-*/"), right)


def test_as_many_expressions_as_are_known() -> None:
    """Inequivalent expressions of n different operands: OEIS A140606."""
    for count, expected in enumerate((1, 6, 68, 1170), start=1):
        shapes = tasks._shapes(count)
        ways = [shapes.all_ways[at] for at in shapes.last]
        assert sum((plus > 0) + (minus > 0) for plus, minus in ways) == expected
        assert sum(map(sum, ways)) == shapes.total


def test_known_problems() -> None:
    assert countdown_modes({"numbers": [3, 3, 8, 8], "target": 24}) == {"8/(3-8/3)": pytest.approx(4 / 7680)}
    assert countdown_modes('{"numbers": [1, 2, 3], "target": 6}') == {
        "1*2*3": pytest.approx(12 / 192),
        "1+2+3": pytest.approx(12 / 192),
        "2*3/1": pytest.approx(8 / 192),
    }
    assert countdown_modes({"numbers": [2, 2], "target": 100}) == {}
    assert countdown_modes({"numbers": [-2, 2], "target": 0}) == {}  # no answer can hold a negative number
    assert countdown_modes({"numbers": [1] * 6, "target": 6}) is None
    assert countdown_modes("text") is None
    assert countdown_modes({"numbers": [0.5, 10**17, 1], "target": 2 * 10**17 + 1}) == {
        "1+100000000000000000/0.5": pytest.approx(2 / 192)
    }
    assert count_countdown_modes((1, 3, 4, 6), 24) == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a-b+c", "c+a-b", True),
        ("a*(b/c)", "a*b/c", True),
        ("a/(b/c)", "a*c/b", True),
        ("a-(b-c)", "a+c-b", True),
        ("(a-b)*(c-d)", "(b-a)*(d-c)", True),
        ("(a-b)*(c-d)", "-(b-a)*(c-d)", True),
        ("a/(b-c)", "-a/(c-b)", True),
        ("a-b", "b-a", False),
        ("a*1", "a/1", False),
        ("a*(b+c)", "a*b+a*c", False),
        ("a+(b-b)*c", "a-(b-b)*c", True),
        ("a/b/c", "a/(b*c)", True),
        ("+a", "a", True),
        ("--a", "a", True),
        ("a+b=9", "b+a", True),
    ],
)
def test_what_counts_as_one_answer(one: str, other: str, same: bool) -> None:
    for numbers in ("2357", "3333"):
        if not same and numbers == "3333":
            continue
        first, second = (text.translate(str.maketrans("abcd", numbers)) for text in (one, other))
        assert (canonical(first) == canonical(second)) is same
        assert canonical(canonical(first)) == canonical(first)
