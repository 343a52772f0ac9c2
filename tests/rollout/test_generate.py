"""What `generate` and `complete` accept from an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from covey.errors import EngineError
from covey.rollout import Completion, SamplingSettings, complete, conversation, generate
from fake_engine import FakeEngine, ScriptedEngine

PROMPTS = [[5], [6]]


def scripted(ids: Any, logps: Any = None) -> ScriptedEngine:
    return ScriptedEngine([Completion([5, 6], truncated=False), Completion(ids, truncated=False, logps=logps)])


def test_the_last_id_and_the_longest_completion_are_accepted() -> None:
    for engine in (scripted([9, 0, 5]), scripted(list(np.array([9, 0, 5])))):
        found = complete(engine, PROMPTS, SamplingSettings(3), seed=None, vocab_size=10)
        assert [one.ids for one in found] == [[5, 6], [9, 0, 5]]


def test_completions_of_engines_without_limits_for_each_are_cut() -> None:
    engine = scripted([9, 0, 5], [-1.0, -2.0, -3.0])
    found = complete(engine, PROMPTS, SamplingSettings(8), seed=None, max_lengths=[3, 2])
    assert found == [Completion([5, 6], truncated=False), Completion([9, 0], truncated=True, logps=[-1.0, -2.0])]
    with pytest.raises(EngineError, match=r"3 tokens: sampling\.max_completion_length is 2"):
        complete(engine, PROMPTS, SamplingSettings(8), seed=None, max_lengths=[1, 2])


def test_a_conversation_with_an_engine_that_keeps_nothing() -> None:
    with conversation(scripted([5])):
        pass


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([9, 10], r"completion 1 \(the first is 0\) the token id 10: the vocabulary's ids are 0 to 9"),
        ([-1], "the token id -1"),
        ([True], "the token id True of type bool"),
        (["a"], "the token id 'a' of type str"),
        ("56", "ids of type str"),
        ([5] * 4, "4 tokens: sampling.max_completion_length is 3"),
        ([], "without tokens"),
    ],
)
def test_other_tokens_are_an_error(ids: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        complete(scripted(ids), PROMPTS, SamplingSettings(3), seed=None, vocab_size=10)


def test_a_log_probability_that_is_no_list_is_an_error() -> None:
    with pytest.raises(EngineError, match="one for each token"):
        complete(scripted([5], 0.5), PROMPTS, SamplingSettings(3), seed=None)


def test_the_vocabulary_is_the_tokenizers_unless_the_models_is_known(tiny_model: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    size = len(tokenizer)
    for most, token in ((None, size - 1), (size + 8, size + 7)):
        found = generate(scripted([token]), tokenizer, ["a", "b"], SamplingSettings(3), seed=0, vocab_size=most)
        assert found[1].ids == [token]
    for most, token in ((None, size), (size + 8, size + 8)):
        with pytest.raises(EngineError, match=f"the token id {token}: the vocabulary's ids are 0 to {token - 1}"):
            generate(scripted([token]), tokenizer, ["a", "b"], SamplingSettings(3), seed=0, vocab_size=most)


def test_an_engines_own_errors_stay_and_others_name_it() -> None:
    class Failing(FakeEngine):
        error: Exception = EngineError("the server is away")

        def generate(self, *args: Any, **kwargs: Any) -> list[Completion]:
            raise self.error

    engine = Failing("", None)
    with pytest.raises(EngineError, match=r"^the server is away$"):
        complete(engine, PROMPTS, SamplingSettings(3), seed=None)
    engine.error = TypeError("no")
    with pytest.raises(EngineError, match=r"^The engine Failing failed in generate: TypeError: no \(.*, line \d+\)\.$"):
        complete(engine, PROMPTS, SamplingSettings(3), seed=None)
