"""Countdown: right, wrong and unreadable answers; nothing but arithmetic is evaluated."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from covey.answers import Outcome
from covey.answers.tasks import UnreadableExpressionError, evaluate
from covey.rewards import RewardSettings, find, get_reward


def test_where_the_expression_is_looked_for() -> None:
    gold = '{"numbers": [2, 3], "target": 6}'
    completions = ["<answer>1</answer><answer>2*3</answer>", r"\boxed{3 \cdot 2}", "2*3", "<answer>2*3"]
    assert get_reward("countdown")(["p"] * 4, completions, answer=[gold] * 4) == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("reward", "answer", "gold"),
    [
        ("countdown", "8/(3-8/3)", '{"numbers": [3, 3, 8, 8], "target": 24}'),
        ("graph_coloring", "B=green", '{"vertices": "AB", "edges": ["AB"], "given": {"A": "red"}}'),
    ],
)
def test_nothing_is_read_inside_thinking(reward: str, answer: str, gold: str) -> None:
    sample = find(reward, RewardSettings()).sample
    assert sample
    for tried in (f"<answer>{answer}</answer>", rf"\boxed{{{answer}}}"):
        for thinking in (
            f"<think>{tried}",
            f"<think>{tried}</think>",
            f"{tried}</think>",
            f"<think>{tried}</think>So.",
        ):
            assert sample(thinking, {"answer": gold}).outcome is Outcome.UNPARSABLE_PREDICTION
            assert sample(thinking.replace(tried, "x") + "</think>" + tried, {"answer": gold}).outcome is Outcome.RIGHT


def test_values_are_exact() -> None:
    assert evaluate("1/3 - 2 * (4 - 0.5) = 7") == (Fraction(-20, 3), [1, 3, 2, 4, Fraction(1, 2)], 7)
    with pytest.raises(ZeroDivisionError):
        evaluate("1/(2-2)")
    with pytest.raises(UnreadableExpressionError):
        evaluate("two")


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_published_solution_is_right(shared_data: Path, split: str) -> None:
    text = (shared_data / f"countdown_tinyzero_{split}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    completions = [f"<answer>{row['solution']}</answer>" for row in rows]
    golds = [row["answer"] for row in rows]
    reward = get_reward("countdown")
    assert reward(completions=completions, answer=golds) == [1.0] * len(rows)
    assert sum(reward(completions=completions[1:] + completions[:1], answer=golds)) == 0.0
