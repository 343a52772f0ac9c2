"""The evaluation run: grading, figures, and what belongs to which problem."""

from __future__ import annotations

import math

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from covey.answers import Outcome
from covey.evaluation import run as evaluation
from covey.evaluation.estimators import share_interval
from covey.model.starter import STARTER_PATH
from covey.rollout import Capabilities, Completion, SamplingSettings
from fake_engine import ScriptedEngine

ROWS = Dataset.from_list(
    [
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "2 + 2"}], "answer": "4"},
        {"prompt": [{"role": "user", "content": "500 + 500"}], "answer": "1000"},
    ]
)


ENDED = Completion([1, 2], truncated=False, text="<answer>4</answer>")


def test_figures_by_hand() -> None:
    completions = [
        Completion([1] * 12, truncated=False, text="<think>\n2+2=4\n</think>\n<answer>4</answer>"),
        Completion([1] * 4, truncated=False, text="<answer>5</answer>"),
        Completion([1] * 8, truncated=False, text="<answer>1,000.0</answer>"),
        Completion([1] * 16, truncated=True, text="<think> I wonder"),
    ]

    engine, tokenizer = ScriptedEngine(completions), AutoTokenizer.from_pretrained(STARTER_PATH)
    result = evaluation.evaluate(engine, tokenizer, ROWS, SamplingSettings(16), num_samples=2, batch_size=4, seed=0)
    asked = ["2 + 2", "2 + 2", "500 + 500", "500 + 500"]
    assert all(text in tokenizer.decode(ids) for text, ids in zip(asked, engine.prompts, strict=True))
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


@pytest.mark.parametrize(("collective", "calls"), [(False, 0), (True, 1)])
def test_a_process_without_a_batch_generates_only_where_the_others_need_it(collective: bool, calls: int) -> None:
    engine, tokenizer = ScriptedEngine([ENDED] * 2), AutoTokenizer.from_pretrained(STARTER_PATH)
    engine.capabilities = Capabilities(collective=collective)
    shard = evaluation.Shard(1, 2, lambda value: [value])
    settings = {"batch_size": 2, "seed": 0, "shard": shard}
    result = evaluation.evaluate(engine, tokenizer, ROWS, SamplingSettings(16), **settings)
    assert result.completions == []
    assert len(engine.prompts) == 2 * calls


def test_nothing_evaluated_is_nan() -> None:
    result = evaluation.summarise([])
    assert all(math.isnan(value) for value in result.metrics().values())
