"""The reward of reasoning-gym's tasks: which part of a completion is scored, and what the outcome is."""

from __future__ import annotations

from typing import Any

import pytest

from covey.answers import Outcome, reasoning_gym
from covey.errors import RewardError
from covey.evaluation.grading import grader_of_rewards
from covey.rewards.registry import find, get_reward
from covey.rewards.reward import RewardSettings


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What reaches the library's scorer, which here gives 1 for "right" and 0.1 for the rest."""
    found: list[Any] = []

    def score(answer: str | None, text: str) -> float:
        found.append((answer, text))
        return 0.0 if answer is None else 1.0 if answer == "right" else 0.1

    monkeypatch.setattr(reasoning_gym, "score", score)
    return found


@pytest.mark.parametrize(
    ("text", "answer", "value", "outcome"),
    [
        ("<think>a</think><answer>\nright\n</answer>", "right", 1.0, Outcome.RIGHT),
        ("<think>a</think><answer>x</answer> <answer>right</answer>", "right", 1.0, Outcome.RIGHT),
        ("<think>a</think>right ", "right", 1.0, Outcome.RIGHT),
        ("right", "right", 1.0, Outcome.RIGHT),
        ("<answer>1\n2</answer>", "1\n2", 0.1, Outcome.WRONG),
        ("<think><answer>right</answer>", None, 0.0, Outcome.UNPARSABLE_PREDICTION),
        ("<think>a</think>  ", None, 0.0, Outcome.UNPARSABLE_PREDICTION),
        ("", None, 0.0, Outcome.UNPARSABLE_PREDICTION),
    ],
)
def test_what_is_scored(scored: list[Any], text: str, answer: str | None, value: float, outcome: Outcome) -> None:
    reward = find("reasoning_gym", RewardSettings())
    assert reward.sample is not None
    grade = reward.sample(text, {"reasoning_gym": "problem"})
    assert (grade.value, grade.outcome) == (value, outcome)
    assert scored == [(answer, "problem")]
    messages = [[{"role": "assistant", "content": text}]]
    assert get_reward("reasoning_gym")(prompts=["q"], completions=messages, reasoning_gym=["problem"]) == [value]


def test_it_is_the_grader_of_its_runs() -> None:
    assert grader_of_rewards(["reasoning_gym", "format"]) == "reasoning_gym"


def test_rows_without_the_column() -> None:
    reward = find("reasoning_gym", RewardSettings())
    assert reward.sample is not None
    with pytest.raises(RewardError, match="needs the column reasoning_gym"):
        reward.sample("1", {"answer": "1"})


@pytest.mark.adapter("reasoning_gym")
def test_the_real_scorer_gives_part_of_it_for_a_nearly_right_answer() -> None:
    [(_, answer, text)] = reasoning_gym.draw("word_sorting", {}, 1, 1, "here")
    rewards = get_reward("reasoning_gym")(
        completions=[f"<answer>{answer}</answer>", "<answer>no idea</answer>", "<think>"], reasoning_gym=[text] * 3
    )
    assert rewards[0] == 1.0
    assert 0 <= rewards[1] < 1.0
    assert rewards[2] == 0.0
