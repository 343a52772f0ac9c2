"""The evaluation run: grading, figures, and what belongs to which problem."""

from __future__ import annotations

import math
from typing import Any

import pytest
from datasets import Dataset

from covey.answers import Outcome
from covey.evaluation import run as evaluation
from covey.evaluation.estimators import share_interval
from covey.rollout import Generation, SamplingSettings

ROWS = Dataset.from_list(
    [
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "2 + 2"}], "answer": "4"},
        {"prompt": [{"role": "user", "content": "500 + 500"}], "answer": "1000"},
    ]
)


def test_figures_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    completions = [
        Generation("<think>\n2+2=4\n</think>\n<answer>4</answer>", 12, truncated=False),
        Generation("<answer>5</answer>", 4, truncated=False),
        Generation("<answer>1,000.0</answer>", 8, truncated=False),
        Generation("<think> I wonder", 16, truncated=True),
    ]

    def fake(model: Any, tokenizer: Any, prompts: list[Any], sampling: Any, **settings: Any) -> list[Generation]:
        assert [p[-1]["content"] for p in prompts] == ["2 + 2", "2 + 2", "500 + 500", "500 + 500"]
        return completions

    monkeypatch.setattr(evaluation, "generate", fake)
    result = evaluation.evaluate(None, None, ROWS, SamplingSettings(16), num_samples=2, batch_size=4, seed=0)
    assert result.accuracy.value == 0.5
    # Both problems are right half the time: no sign of correlation within a problem, so all four count.
    assert (result.accuracy.low, result.accuracy.high) == share_interval(2, 4)
    assert (result.format, result.completion_length, result.truncated) == (0.25, 10.0, 0.25)
    assert [c.problem for c in result.completions] == [0, 0, 1, 1]
    assert [c.prompt for c in result.completions] == ["2 + 2", "2 + 2", "500 + 500", "500 + 500"]
    assert [c.outcome for c in result.completions] == [
        Outcome.RIGHT,
        Outcome.WRONG,
        Outcome.RIGHT,
        Outcome.UNPARSABLE_PREDICTION,
    ]
    assert result.metrics()["accuracy"] == 0.5


def test_nothing_evaluated_is_nan() -> None:
    result = evaluation.summarise([])
    assert all(math.isnan(value) for value in result.metrics().values())
