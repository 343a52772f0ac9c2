"""GSM8K shaping: every reward by hand, and the format against the published pattern."""

from __future__ import annotations

import random
import re

import pytest

from covey.answers import Outcome, Tags
from covey.rewards import RewardSettings, find, get_reward
from covey.rewards.library.gsm8k_shaping import formatted_answer

DEFAULT = RewardSettings()


def completion(answer: str) -> str:
    return f"<think>so</think>\n<answer>{answer}</answer>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>a</think><answer>b</answer>", "b"),
        ("Well:\n  <think>a</think> thus <answer> b </answer>  \nDone.", " b "),
        ("<think>a</think><answer>b</answer><answer>c</answer>", "b</answer><answer>c"),
        ("Well: <think>a</think><answer>b</answer>", None),
        ("<think>a</think><answer>b</answer>.", None),
        ("<think></think><answer>b</answer>", None),
        ("<think>a</think><answer></answer>", None),
        ("<answer>b</answer><think>a</think>", None),
        ("<think>a<answer>b</answer>", None),
        ("", None),
    ],
)
def test_the_format(text: str, answer: str | None) -> None:
    assert formatted_answer(text, Tags()) == answer
    assert get_reward("match_format_exactly")(["p"], [text]) == [0.0 if answer is None else 3.0]


def test_the_format_is_that_of_the_published_pattern() -> None:
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    pattern = re.compile(r"^\s*{}.+?{}.*?{}(.+?){}\s*$".format(*tags), re.MULTILINE | re.DOTALL)
    rng = random.Random(0)
    accepted = 0
    for _ in range(20_000):
        pieces = [piece for tag in tags for piece in (tag, *rng.choices(["", " ", "\n", "x", tag], k=2))]
        for _ in range(rng.randrange(3)):
            pieces.insert(rng.randrange(len(pieces)), rng.choice([*tags, "\n", " ", "y"]))
        text = "".join(pieces)
        found = pattern.search(text)
        assert formatted_answer(text, Tags()) == (found.group(1) if found else None), repr(text)
        accepted += found is not None
    assert 2_000 < accepted < 18_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>a</think><answer>b</answer>", 2.0),
        ("</answer></think><answer><think>", 2.0),
        ("<think>a</think><answer>b", 1.0),
        ("<think>a</think>", 0.0),
        ("<think><think></think>", -1.0),
        ("", -2.0),
    ],
)
def test_match_format_approximately(text: str, value: float) -> None:
    assert get_reward("match_format_approximately")(["p"], [text]) == [value]


@pytest.mark.parametrize(
    ("answer", "gold", "value", "outcome"),
    [
        ("10", "10", 3.0, Outcome.RIGHT),
        (" 10\n", "10", 1.5, Outcome.RIGHT),
        ("ten", "ten", 3.0, Outcome.RIGHT),
        ("10.0", "10", 0.5, Outcome.WRONG),  # the same number, written differently
        ("9", "10", 0.5, Outcome.WRONG),
        ("11", "10", 0.5, Outcome.WRONG),
        ("-9.5", "-10", 0.5, Outcome.WRONG),
        ("8", "10", 0.25, Outcome.WRONG),
        ("12", "10", 0.25, Outcome.WRONG),
        ("8.9", "10", 0.25, Outcome.WRONG),
        ("7.9", "10", -1.0, Outcome.WRONG),
        ("12.1", "10", -1.0, Outcome.WRONG),
        ("-10", "10", -1.0, Outcome.WRONG),
        ("1e1", "1000", -1.0, Outcome.WRONG),
        ("ten", "10", -0.5, Outcome.WRONG),
        ("nan", "10", -0.5, Outcome.WRONG),
        ("1_0", "10", -0.5, Outcome.WRONG),
        ("9" * 4000, "10", -0.5, Outcome.WRONG),
        ("1", "0", -0.5, Outcome.WRONG),
        ("1", "one", -0.5, Outcome.WRONG),
        ("", "10", 0.0, Outcome.UNPARSABLE_PREDICTION),
        ("10", None, None, Outcome.UNPARSABLE_GOLD),
    ],
)
def test_check_answer(answer: str, gold: str | None, value: float | None, outcome: Outcome) -> None:
    sample = find("check_answer", DEFAULT).sample
    assert sample
    graded = sample(completion(answer), {"answer": gold})
    assert (graded.value, graded.outcome) == (value, outcome)


def test_check_answer_requires_the_format() -> None:
    assert get_reward("check_answer")(["p"] * 2, ["<answer>10</answer>", "10"], answer=["10"] * 2) == [0.0, 0.0]
    sample = find("check_answer", DEFAULT).sample
    assert sample
    outcomes = [sample(text, {"answer": "10"}).outcome for text in ("<answer>10</answer>", "10")]
    assert outcomes == [Outcome.WRONG_FORM, Outcome.UNPARSABLE_PREDICTION]


@pytest.mark.parametrize(
    ("text", "gold", "value", "outcome"),
    [
        ("<answer>It is 5 dollars, not 6</answer>", "5", 1.5, Outcome.RIGHT),
        ("<answer>5, I think</answer>", "5", 1.5, Outcome.RIGHT),
        ("<answer>1,2345</answer>", "1234", 0.0, Outcome.WRONG),
        ("<answer>5.0", "5", 1.5, Outcome.RIGHT),  # the tag need not be closed
        ("<answer>$1,234.50.</answer>", "1234.5", 1.5, Outcome.RIGHT),
        ("<answer>x = -5</answer>", "-5", 1.5, Outcome.RIGHT),
        ("<answer>.5</answer>", "0.50", 1.5, Outcome.RIGHT),
        ("<answer>8-5</answer>", "8", 1.5, Outcome.RIGHT),
        ("<answer>x-5</answer>", "5", 1.5, Outcome.RIGHT),  # an operator, not a sign
        ("<answer>5</answer>", "-5", 0.0, Outcome.WRONG),
        ("<answer>6, no, 5</answer>", "5", 0.0, Outcome.WRONG),
        ("<answer>five</answer> 5", "5", 0.0, Outcome.UNPARSABLE_PREDICTION),
        ("5", "5", 0.0, Outcome.UNPARSABLE_PREDICTION),
        ("<answer>5</answer>", "five", None, Outcome.UNPARSABLE_GOLD),
        ("<answer>5</answer>", None, None, Outcome.UNPARSABLE_GOLD),
    ],
)
def test_check_numbers(text: str, gold: str | None, value: float | None, outcome: Outcome) -> None:
    sample = find("check_numbers", DEFAULT).sample
    assert sample
    graded = sample(text, {"answer": gold})
    assert (graded.value, graded.outcome) == (value, outcome)
