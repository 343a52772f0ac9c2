r"""No completion is right without the answer's value, makes the grader raise, or makes it run for long.

Every case here did one of these before sizes were bounded and the parser stopped evaluating. The full lists are
benchmarks: grading_hacks.py (all datasets) and grading_fuzz.py (20,000 expressions).
"""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType

import pytest

from covey.answers import Outcome, answers_agree, grade_math
from covey.answers.maths.expression import parse
from covey.rewards import get_reward
from load_scripts import load_script

GOLDS = (
    "72", "0", "1", "-3", "9975", "1,200", "0.5", r"\frac{7}{12}", r"2\sqrt{3}", r"\pi", "x^2+1", "(1, 2)", "1, 2, 3",
    r"\{1, 2\}", "[0, 1)", r"(-\infty, 3)", "x = 5", r"x \ge 5", "B", r"\text{(E)}", r"\text{odd}", r"50\%", "3 : 4",
    "12:30", "204_5", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "3+4i", r"\frac{n(n+1)}{2}",
    r"(-\infty,0)\cup(0,\infty)",
)  # fmt: skip


@pytest.fixture(scope="module")
def hacks() -> ModuleType:
    return load_script("benchmarks/grading_hacks.py")


@pytest.mark.slow
def test_no_hack_is_right(hacks: ModuleType) -> None:
    assert len(hacks.fixed()) >= 500
    count, hits = hacks.hits(hacks.fixed(), list(GOLDS))
    assert count > len(GOLDS) * 500
    assert hits == []


def test_no_hack_of_a_sample_is_right(hacks: ModuleType) -> None:
    every = hacks.fixed()
    for i, gold in enumerate(GOLDS):
        assert hacks.hits(every[i :: len(GOLDS)], [gold])[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gsm8k_test", "math500_test", "aime24", "amc23", "deepscaler_10k"])
def test_no_hack_is_right_on_gold_answers_of_data_sets(hacks: ModuleType, shared_data: Path, name: str) -> None:
    golds = hacks.gold_answers(shared_data, name, 25, seed=1)
    assert hacks.hits(random.Random(2).sample(hacks.fixed(), 100), golds)[1] == []


def test_random_expressions_are_graded() -> None:
    """Whatever is in a box, the reward is a number, and right only where the text has the value or the words."""
    fuzz = load_script("benchmarks/grading_fuzz.py")
    rng, reward = random.Random(5), get_reward("accuracy")
    for _ in range(500):
        text, gold = fuzz.candidate(rng), rng.choice(fuzz.GOLDS)
        (value,) = reward(prompts=[""], completions=[rf"\boxed{{{text}}}"], answer=[gold])
        assert value in (0.0, 1.0), text
        if r"\infty" in text and "infty" not in gold:
            assert value == 0.0, (text, gold)


@pytest.mark.parametrize("depth", [60, 1_300, 1_990])
@pytest.mark.parametrize("brackets", ["()", "[]", "{}"])
def test_deeply_nested_brackets_are_refused(brackets: str, depth: int) -> None:
    text = brackets[0] * depth + "1" + brackets[1] * depth
    assert answers_agree(text, "72") is not Outcome.RIGHT
    assert answers_agree("72", text) is not Outcome.RIGHT


@pytest.mark.parametrize("mark", ["!", "%", r"\%!", "^2!", "/1", "*1", r"\cdot 1", "^{1}", "-1", "'"])
def test_deep_expressions_without_brackets_are_refused(mark: str) -> None:
    text = ("1" + mark * 490)[:490]
    assert get_reward("accuracy")(prompts=[""], completions=[rf"\boxed{{{text}}}"], answer=["72"]) == [0.0]
    assert grade_math(rf"\boxed{{{text}}}", "72") is not Outcome.RIGHT
    assert grade_math(r"\boxed{72}", text) is not Outcome.RIGHT
    assert parse(text) is None or mark == "-1"


def test_a_verdict_does_not_depend_on_what_was_graded_before() -> None:
    """Work is counted, also where a cache saves it."""
    pairs = [
        (r",".join(rf"\sin({i})" for i in range(60)), r",".join(rf"\cos({i})" for i in range(60))),
        ("2", r"\sqrt4"),
    ]
    assert [answers_agree(*pair) for pair in pairs * 2] == [Outcome.WRONG, Outcome.RIGHT] * 2
