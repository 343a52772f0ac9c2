"""GSM8K shaping: every reward by hand, and the format against the published pattern."""

from __future__ import annotations

import random
import re
from pathlib import Path

from corpus import read_cases
from covey.answers import Outcome, Tags
from covey.rewards import RewardSettings, find, get_reward
from covey.rewards.library.tasks import formatted_answer


def test_the_answer_in_the_format() -> None:
    for case in read_cases(Path(__file__).parents[1] / "values.jsonl")["match_format_exactly"]:
        assert formatted_answer(case["completion"], Tags()) == case["answer"], case


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


def test_check_answer_requires_the_format() -> None:
    assert get_reward("check_answer")(["p"] * 2, ["<answer>10</answer>", "10"], answer=["10"] * 2) == [0.0, 0.0]
    sample = find("check_answer", RewardSettings()).sample
    assert sample
    outcomes = [sample(text, {"answer": "10"}).outcome for text in ("<answer>10</answer>", "10")]
    assert outcomes == [Outcome.WRONG_FORM, Outcome.UNPARSABLE_PREDICTION]
