"""What `generate` and `complete` accept from an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from covey.errors import EngineError
from covey.rollout import Capabilities, Completion, SamplingSettings, complete, conversation, generate
from covey.rollout.engine import cut
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


def supported(support: Any, ids: Any = (5, 9)) -> ScriptedEngine:
    return ScriptedEngine([Completion([5, 6], truncated=False), Completion(list(ids), False, support=support)])


def test_a_support_is_of_the_vocabulary_and_holds_the_sampled_tokens() -> None:
    good = torch.tensor([[5, -1, -1], [3, 9, 7]], dtype=torch.int32)
    found = complete(supported(good), PROMPTS, SamplingSettings(3), seed=None, vocab_size=10, max_lengths=[2, 1])
    assert found[1].support is not None
    assert found[1].support.tolist() == [[5, -1, -1]]
    for bad, message in (
        (
            good.long(),
            r"completion 1 \(the first is 0\) a support of torch.int64 \[2, 3\]: it is a tensor of",
        ),
        (good[:1], r"a support of torch.int32 \[1, 3\]: it is a tensor of torch.int32 \[2, C\]"),
        (good.tolist(), "a support of list"),
        (good[None], r"torch.int32 \[1, 2, 3\]"),
        (torch.tensor([[5, 10], [9, 1]], dtype=torch.int32), "a support with ids from 1 to 10"),
        (torch.tensor([[5, -2], [9, 1]], dtype=torch.int32), "a support with ids from -2 to 9"),
        (torch.tensor([[5, 9], [5, -1]], dtype=torch.int32), "a support without the sampled token 9, in place 1"),
        (torch.empty(2, 0, dtype=torch.int32), "a support without the sampled token 5, in place 0"),
    ):
        with pytest.raises(EngineError, match=message):
            complete(supported(bad), PROMPTS, SamplingSettings(3), seed=None, vocab_size=10)


class GoesOn(ScriptedEngine):
    """Takes everything, and records it."""

    capabilities = Capabilities(seeded=True, row_seeds=True, interruptible=True)
    options: ClassVar[dict[str, Any]] = {}

    def generate(self, prompts: Any, sampling: Any, **options: Any) -> list[Completion]:  # type: ignore[override]
        self.options.update(options)
        for place, one in enumerate(self.completions):
            if options["on_ended"] is not None and not one.unfinished:
                options["on_ended"](place, one)
        return self.completions


def test_seeds_and_interruption_reach_an_engine_that_takes_them() -> None:
    engine, ended = GoesOn([Completion([5, 6], False), Completion([], False, unfinished=True)]), list[Any]()
    found = complete(
        *(engine, PROMPTS, SamplingSettings(3)),
        seed=[7, 8],
        max_lengths=[1, 3],
        interrupted=lambda: True,
        on_ended=lambda *one: ended.append(one),
    )
    assert engine.options["seed"] == [7, 8]
    assert engine.options["interrupted"]()
    assert found[1] == Completion([], False, unfinished=True)
    assert ended == [(0, Completion([5], truncated=True))] == [(0, found[0])], "cut, as in the result"
    complete(engine, PROMPTS, SamplingSettings(3), seed=5)
    assert engine.options["on_ended"] is None
    broken = GoesOn([Completion([5, 6], False), Completion([77], False)])
    with pytest.raises(EngineError, match="the token id 77"):
        complete(broken, PROMPTS, SamplingSettings(3), seed=5, vocab_size=10, on_ended=lambda *_: None)


def test_an_engine_that_takes_one_seed_gets_one_of_all_and_reports_at_the_end() -> None:
    class Seeded(FakeEngine):
        seeds: ClassVar[list[Any]] = []

        def generate(self, prompts: Any, sampling: Any, *, seed: Any = None) -> list[Completion]:
            self.seeds.append(seed)
            return [Completion([5, 6], False), Completion([6], False)]

    engine, ended = Seeded("", None), list[Any]()
    for seeds in ([1, 2], [1, 2], [2, 1], [1, 2**70]):
        complete(
            *(engine, PROMPTS, SamplingSettings(3)),
            seed=seeds,
            interrupted=lambda: True,
            on_ended=lambda *one: ended.append(one),
        )
    assert engine.seeds[0] == engine.seeds[1]
    assert len(set(engine.seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in engine.seeds)
    assert ended[:2] == [(0, Completion([5, 6], False)), (1, Completion([6], False))]


def test_an_unfinished_completion_that_is_cut_has_reached_its_limit() -> None:
    one = Completion([5, 6], False, unfinished=True)
    assert cut(one, 3) is one
    assert cut(one, 2) == Completion([5, 6], truncated=True)
    assert cut(replace(one, unfinished=False), 2) == Completion([5, 6], truncated=False)


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
