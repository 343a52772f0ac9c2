"""Countdown: right, wrong and unreadable answers; nothing but arithmetic is evaluated."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from covey.answers import Outcome
from covey.answers.tasks.countdown import evaluate
from covey.answers.tasks.expressions import UnreadableExpressionError
from covey.rewards import RewardSettings, find, get_reward

TASK = json.dumps({"numbers": [3, 3, 8, 8], "target": 24})


def outcome(answer: str, gold: Any = TASK) -> Outcome | None:
    sample = find("countdown", RewardSettings()).sample
    assert sample
    graded = sample(f"<think>?</think><answer>{answer}</answer>", {"answer": gold})
    assert graded.value == {Outcome.RIGHT: 1.0, Outcome.UNPARSABLE_GOLD: None}.get(graded.outcome, 0.0)  # type: ignore[arg-type]
    return graded.outcome


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("8 / (3 - 8 / 3)", TASK),  # needs exact fractions
        ("8/(3-8/3) = 24", TASK),
        ("8 ÷ (3 − 8 ÷ 3)=24.", TASK),
        (r"$8 \div \left(3 - 8 \div 3\right)$", TASK),
        ("35 + (44 + 19)", '{"numbers": [44, 19, 35], "target": 98}'),
        ("(19+35)+44", {"numbers": (44, 19, 35), "target": 98}),
        (r"2 × 3 · 4 \times 5", {"numbers": [2, 3, 4, 5], "target": 120}),
        ("-2 + +5", {"numbers": [2, 5], "target": 3}),
        ("10 - 4 - 3", {"numbers": [10, 4, 3], "target": 3}),  # from left to right
        ("2 + 3 * 4 - 12 / 6", {"numbers": [2, 3, 4, 12, 6], "target": 12}),
        ("1 - 3 = -2", {"numbers": [1, 3], "target": -2}),
        ("1.5 + 1.0", {"numbers": [1.5, 1], "target": 2.5}),
        ("0.1 + 0.2", {"numbers": [0.1, 0.2], "target": 0.3}),  # not in binary floating point
    ],
)
def test_right(answer: str, gold: Any) -> None:
    assert outcome(answer, gold) is Outcome.RIGHT


@pytest.mark.parametrize(
    "answer",
    [
        *("8*3", "24"),  # the target, but not all numbers
        *("8*3*(8-8+1)", "8*3+3-3", "3*8*8/8"),  # a number that is not given; one too often
        *("8+8+3+3", "3*8+8-8"),
        *("8/(3-8/3) = 25", "8+8+3+3 = 24"),  # states a false equation
        *("8/(3-3)+8", "8/(8-8)/(3-3)"),  # no value at all
    ],
)
def test_wrong(answer: str) -> None:
    assert outcome(answer) is Outcome.WRONG


@pytest.mark.parametrize(
    "answer",
    [
        *("", "no idea", "8 (3)", "8 8", "8 +", "* 8", "(8", "8)", "()", "8..3", "8."),
        *("= 24", "24 = 8*3", "8*3 = 24 = 24"),
        *("9**9**9**9", "8//3", "8^3", "8 % 3", "3!", "1e9", "0x10", "3_3", "1j", "٣+٣", "8 < 3", "8; 3"),
        *("__import__('os').system('true')", "exec('1')", "(lambda: 24)()", "[8][0]", "True", "max(8, 3)"),
        *("9" * 19, "(" * 150 + "8" + ")" * 150, "-" * 150 + "8", "8+" * 600 + "8"),
    ],
)
def test_unreadable(answer: str) -> None:
    assert outcome(answer) is Outcome.UNPARSABLE_PREDICTION


def test_where_the_expression_is_looked_for() -> None:
    gold = '{"numbers": [2, 3], "target": 6}'
    completions = ["<answer>1</answer><answer>2*3</answer>", r"\boxed{3 \cdot 2}", "2*3", "<answer>2*3"]
    assert get_reward("countdown")(["p"] * 4, completions, answer=[gold] * 4) == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("reward", "answer", "gold"),
    [
        ("countdown", "8/(3-8/3)", TASK),
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


@pytest.mark.parametrize(
    "gold",
    [
        "[" * 100_000,
        *(None, "", "24", "[1, 2]", "{}", '{"numbers": [1, 2]}', '{"target": 3}', '{"numbers": [], "target": 3}'),
        *('{"numbers": [1, "2"], "target": 3}', '{"numbers": [1, true], "target": 3}', '{"numbers": 12, "target": 3}'),
        *('{"numbers": [1, 2], "target": NaN}', '{"numbers": [1, 1e400], "target": 3}', '{"numbers": [1, 2', 3),
    ],
)
def test_gold_answers_that_cannot_be_read(gold: Any) -> None:
    assert outcome("1+2", gold) is Outcome.UNPARSABLE_GOLD


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
