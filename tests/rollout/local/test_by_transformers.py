"""Completions by transformers' `generate`: against `sample`, and against transformers' own scores."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from covey.errors import EngineError, TrainingError
from covey.rollout import Completion, LocalEngine, SamplingSettings, sample
from covey.rollout.local.engine import by_transformers
from small_models import build

PROMPTS = [[5, 9, 11], list(range(3, 17)), [7, 7, 21, 30, 2, 6]]
ROWS = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2 + [PROMPTS[2]] * 4
SEEDS = list(range(9))
PLAIN = SamplingSettings(30, logprobs=True, support=True)
SETTINGS = {
    "plain": PLAIN,
    "greedy": replace(PLAIN, temperature=0.0, repetition_penalty=1.1, top_k=5),
    "top-k": replace(PLAIN, top_k=7, temperature=0.8),
    "top-p": replace(PLAIN, top_p=0.9, temperature=1.3),
    "min-p, bounded": replace(PLAIN, min_p=0.01, support_top_k=9),
    "all": replace(PLAIN, top_k=12, top_p=0.9, min_p=0.02, temperature=1.3, repetition_penalty=1.3),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return build("qwen3")


def generated(model: Any, settings: SamplingSettings, seeds: list[int] | None = None, **options: Any) -> Any:
    options = {"eos_token_ids": [3, 8], "logits_processors": [], "interrupted": None, **options}
    return by_transformers(model, ROWS, settings, pad_token_id=0, row_seeds=seeds, **options)


@pytest.mark.parametrize("name", SETTINGS)
def test_with_seeds_of_rows_it_is_what_sample_gives(model: Any, name: str) -> None:
    expected = sample(model, ROWS, SETTINGS[name], eos_token_ids=[3, 8], row_seeds=SEEDS)
    found = generated(model, SETTINGS[name], SEEDS)
    assert len({one.length for one in expected}) > 2
    for one, other in zip(found, expected, strict=True):
        assert (one.ids, one.truncated) == (other.ids, other.truncated)
        assert one.logps == pytest.approx(other.logps, rel=0, abs=1e-5)
        assert (one.support is None) == (other.support is None) == (not SETTINGS[name].truncates)
        if one.support is not None and other.support is not None:
            assert torch.equal(one.support.sort(-1).values, other.support.sort(-1).values)


@pytest.mark.parametrize("name", SETTINGS)
def test_log_probabilities_are_those_of_the_scores_that_transformers_samples_from(model: Any, name: str) -> None:
    """Also without supports, whose bound changes the distribution."""
    settings = replace(SETTINGS[name], support=False)
    longest = max(map(len, ROWS))
    sampled = settings.temperature > 0
    options = {"temperature": settings.temperature, "top_p": settings.top_p, "min_p": settings.min_p}
    config = GenerationConfig(
        max_new_tokens=30,
        eos_token_id=[3, 8],
        pad_token_id=0,
        do_sample=sampled,
        repetition_penalty=settings.repetition_penalty,
        return_dict_in_generate=True,
        output_scores=True,
        **({**options, "top_k": settings.top_k} if sampled else {}),
    )
    torch.manual_seed(3)
    expected = model.generate(
        input_ids=torch.tensor([[0] * (longest - len(ids)) + ids for ids in ROWS]),
        attention_mask=torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in ROWS]),
        generation_config=config,
    )
    torch.manual_seed(3)
    found = generated(model, settings)
    torch.manual_seed(3)
    assert [one.ids for one in generated(model, replace(settings, logprobs=False))] == [one.ids for one in found]
    logps_BTV = torch.stack(expected.scores, dim=1).log_softmax(-1)
    for row, one in enumerate(found):
        assert one.ids == expected.sequences[row, longest:][: one.length].tolist(), "the same random numbers"
        assert one.support is None
        assert one.logps == pytest.approx(
            [float(logps_BTV[row, t, token]) for t, token in enumerate(one.ids)], abs=1e-5
        )


def test_supports_without_seeds_of_rows(model: Any) -> None:
    torch.manual_seed(0)
    for one in generated(model, SETTINGS["min-p, bounded"]):
        assert one.support is not None
        assert one.support.shape[0] == one.length
        assert one.support.shape[1] <= 9
        assert (one.support == torch.tensor(one.ids)[:, None]).any(1).all()


def test_ties_at_the_edge_of_top_k_are_cut_to_k() -> None:
    """transformers keeps all of them; with supports as many are kept as make k."""
    even = build("qwen3")
    even.lm_head.weight.data.zero_()
    found = generated(even, replace(PLAIN, top_k=4))
    for one in found:
        assert one.support is not None
        assert (one.support >= 0).sum(1).eq(4).all()
        assert one.logps == pytest.approx([-math.log(4)] * one.length, abs=1e-6)


def test_further_options_of_the_model_count(model: Any) -> None:
    """Those of its generation config, for which `sample` is not used at all."""
    odd = build("qwen3")
    odd.generation_config.epsilon_cutoff = 0.05
    found = generated(odd, PLAIN, SEEDS)
    with torch.no_grad():
        for prompt, one in zip(ROWS, found, strict=True):
            logits_TV = odd(torch.tensor([prompt + one.ids])).logits[0, len(prompt) - 1 : -1]
            logits_TV[logits_TV.softmax(-1) < 0.05] = -torch.inf
            expected = logits_TV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
            assert torch.allclose(torch.tensor(one.logps), expected, atol=1e-5)


def test_what_has_no_log_probabilities_of_sampling_is_an_error() -> None:
    beams = build("qwen3")
    beams.generation_config.num_beams = 2
    assert len(generated(beams, replace(PLAIN, logprobs=False, support=False))) == 9
    with pytest.raises(EngineError, match=r"asks for beam sample.*remove it from generation_config"):
        generated(beams, PLAIN)
    own = build("qwen3")
    own.generate = lambda input_ids, **_: torch.cat([input_ids, torch.full((9, 2), 3)], dim=1)
    assert [one.ids for one in generated(own, replace(PLAIN, logprobs=False, support=False))] == [[3]] * 9
    with pytest.raises(EngineError, match="Qwen3ForCausalLM has a generate of its own, which returns no log-prob"):
        generated(own, PLAIN)


def test_logits_that_are_not_finite_end_the_run() -> None:
    broken = build("qwen3")
    broken.lm_head.weight.data[3] = torch.nan
    with pytest.raises(TrainingError, match="not finite"):
        generated(broken, PLAIN, SEEDS)


def test_an_engine_returns_log_probabilities_whichever_way_it_samples(tiny_model: str) -> None:
    """The same of a shared prefill and of transformers' generate, with one seed for the call each its own tokens."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    engine = LocalEngine(model, tokenizer, shared_prefill=False, batch_size=2)
    assert engine.capabilities.logprobs
    ended: list[tuple[int, Completion]] = []
    found = engine.generate(
        [[5, 6, 7], [8, 9], [8, 9]],
        SamplingSettings(8, logprobs=True),
        seed=3,
        on_ended=lambda *one: ended.append(one),
    )
    assert ended == list(enumerate(found))
    plain = engine.generate([[5, 6, 7], [8, 9], [8, 9]], SamplingSettings(8), seed=3)
    assert [one.ids for one in plain] == [one.ids for one in found]
    assert all(one.logps is None for one in plain)
    for prompt, one in zip([[5, 6, 7], [8, 9], [8, 9]], found, strict=True):
        with torch.no_grad():
            logits_TV = model.eval()(torch.tensor([[*prompt, *one.ids]])).logits[0, len(prompt) - 1 : -1]
        expected_T = logits_TV.log_softmax(-1).gather(1, torch.tensor(one.ids)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(one.logps), expected_T, atol=1e-5)
