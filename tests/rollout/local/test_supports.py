"""Supports: against a float64 reference of what top-k, top-p and min-p keep, and log-probs normalised over them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.rollout import Completion, LocalEngine, SamplingSettings, sample
from covey.rollout.local.tokens import Supports, sample_tokens
from small_models import VOCABULARY, build

PROMPTS = [[5, 9, 11], list(range(3, 17)), [7, 7, 21, 30, 2, 6]]
ROWS = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2 + [PROMPTS[2]] * 4
WITH = SamplingSettings(30, logprobs=True, support=True)
SETTINGS = {
    "top-k": replace(WITH, top_k=7),
    "one token": replace(WITH, top_k=1),
    "top-p": replace(WITH, top_p=0.8, temperature=1.4),
    "top-p, bounded": replace(WITH, top_p=0.97, temperature=1.4, support_top_k=6),
    "min-p": replace(WITH, min_p=0.05, temperature=0.7),
    "min-p, bounded": replace(WITH, min_p=0.001, temperature=2.0, support_top_k=12),
    "all, with a penalty": replace(WITH, top_k=12, top_p=0.9, min_p=0.02, temperature=1.3, repetition_penalty=1.4),
    "a low penalty": replace(WITH, top_p=0.9, repetition_penalty=0.7, temperature=0.5),
    "hardly any": replace(WITH, top_p=1e-9),
    "larger than the vocabulary": replace(WITH, top_k=VOCABULARY + 5, top_p=0.9),
}
EDGE = 1e-5
"""Tokens this near to the edge of top-p or min-p may be in or out, by rounding."""


def kept_sizes(logits: Sequence[float], sampling: SamplingSettings) -> tuple[int, int]:
    """How many of the likeliest tokens are kept, by the definition: least and most, given rounding at the edges."""
    most = sampling.top_k or (sampling.support_top_k if sampling.top_p < 1 or sampling.min_p > 0 else 0)
    ordered = sorted((one for one in logits if one > -math.inf), reverse=True)
    ordered = ordered[: most or len(ordered)]
    weights = [math.exp(one - ordered[0]) for one in ordered]
    total, above, sizes = sum(weights), 0.0, [1, 1]
    for count, weight in enumerate(weights, start=1):
        for which, sign in enumerate((1, -1)):
            inside = count == 1 or above / total + sign * EDGE < sampling.top_p or sampling.top_p == 1
            if inside and (weight - sign * EDGE * weight >= sampling.min_p):
                sizes[which] = count
        above += weight
    return sizes[0], sizes[1]


def check_support(support: torch.Tensor, logits_V: torch.Tensor, sampling: SamplingSettings) -> None:
    """One place: as many tokens as the definition keeps, none likelier left out, none masked."""
    ids = [token for token in support.tolist() if token >= 0]
    assert support[len(ids) :].eq(-1).all(), "-1 comes last"
    assert len(set(ids)) == len(ids)
    least, most = kept_sizes(logits_V.tolist(), sampling)
    assert least <= len(ids) <= most
    inside = logits_V[ids]
    outside = logits_V.clone()
    outside[ids] = -torch.inf
    assert inside.isfinite().all()
    assert float(inside.min()) >= float(outside.max()) - 1e-4


# -- one step


CUTS = [
    {"top_k": 5},
    {"top_p": 0.7},
    {"top_p": 0.7, "support_top_k": 9},
    {"min_p": 0.1},
    {"min_p": 0.1, "support_top_k": 3},
    {"top_k": 20, "top_p": 0.6, "min_p": 0.05},
    {"top_k": 300, "min_p": 0.3},
]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocabulary", [1, 12, 211])
def test_a_support_is_what_is_sampled_from(cuts: dict[str, Any], ties: bool, vocabulary: int) -> None:
    """Also with equal logits at every edge: the shipped set decides, not a rule that is applied again."""
    sampling, rows = SamplingSettings(1, logprobs=True, support=True, **cuts), 40
    draw = torch.Generator().manual_seed(vocabulary)
    logits_bV = torch.randn(rows, vocabulary, generator=draw) * 2
    if ties:
        logits_bV = logits_bV.round()
    if vocabulary > 12:
        logits_bV[:, ::3] = -torch.inf
    uniform_b = torch.rand(rows, dtype=torch.float64, generator=draw)
    found = sample_tokens(logits_bV.clone(), uniform_b, sampling)
    assert found.support is not None
    assert found.support.dtype == torch.int32
    assert found.logps_b is not None
    for row in range(rows):
        if not ties or "top_p" not in cuts:
            check_support(found.support[row], logits_bV[row], sampling)
        ids = [token for token in found.support[row].tolist() if token >= 0]
        assert int(found.tokens_b[row]) in ids
        logps = logits_bV[row, ids].double().log_softmax(-1)
        assert float(found.logps_b[row]) == pytest.approx(float(logps[ids.index(int(found.tokens_b[row]))]), abs=1e-5)


def test_every_token_of_a_support_can_be_sampled_and_no_other() -> None:
    numbers = 4000
    sampling = SamplingSettings(1, top_p=0.9, min_p=0.01, support=True, support_top_k=20)
    logits_V = (torch.randn(50, generator=torch.Generator().manual_seed(1)) * 1.5).round(decimals=1)
    uniform_b = (torch.arange(numbers, dtype=torch.float64) + 0.5) / numbers
    found = sample_tokens(logits_V.expand(numbers, -1).clone(), uniform_b, sampling)
    assert found.support is not None
    assert set(found.tokens_b.tolist()) == set(found.support[0].tolist()) - {-1}


def test_without_a_cut_or_in_greedy_decoding_there_is_no_support() -> None:
    logits_bV, uniform_b = torch.randn(3, 20), torch.rand(3, dtype=torch.float64)
    plain = SamplingSettings(1, support=True, support_top_k=4)
    assert (plain.truncates, plain.most_kept) == (False, 0)
    for settings in (plain, replace(plain, temperature=0.0, top_k=5)):
        assert not settings.truncates
        assert sample_tokens(logits_bV.clone(), uniform_b, settings).support is None
    without = replace(plain, support=False, top_p=0.9)
    assert without.most_kept == 0, "the bound is for supports only"
    assert sample_tokens(logits_bV.clone(), uniform_b, without).support is None
    assert replace(plain, min_p=0.1).most_kept == 4
    assert replace(plain, top_k=9, min_p=0.1).most_kept == 9


@pytest.mark.parametrize("cuts", [{}, {"top_k": 6}, {"top_p": 0.9}, {"top_k": 6, "min_p": 0.1}], ids=str)
def test_asking_for_supports_changes_no_token(cuts: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(0)
    logits_bV, uniform_b = torch.randn(30, 50, generator=draw), torch.rand(30, dtype=torch.float64, generator=draw)
    both = [
        sample_tokens(logits_bV.clone(), uniform_b, SamplingSettings(1, logprobs=True, support=one, **cuts))
        for one in (False, True)
    ]
    assert torch.equal(both[0].tokens_b, both[1].tokens_b)
    assert torch.equal(both[0].logps_b, both[1].logps_b)  # type: ignore[arg-type]


# -- completions


@pytest.fixture(scope="module")
def model() -> Any:
    return build("qwen3")


@pytest.fixture(scope="module")
def exact(model: Any) -> Any:
    """The same weights in float64."""
    return copy.deepcopy(model).double()


def reference_logits(exact: Any, prompt: Sequence[int], ids: Sequence[int], sampling: SamplingSettings) -> torch.Tensor:
    """The penalised logits, divided by the temperature, at each place: `[T, V]` in float64."""
    with torch.no_grad():
        logits_TV = exact(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    for place, logits_V in enumerate(logits_TV):
        for token in {*prompt, *ids[:place]}:
            penalty = sampling.repetition_penalty
            logits_V[token] = logits_V[token] * penalty if logits_V[token] < 0 else logits_V[token] / penalty
    return logits_TV / sampling.temperature


def check_completion(exact: Any, prompt: Sequence[int], one: Completion, sampling: SamplingSettings) -> None:
    assert one.support is not None
    assert one.support.dtype == torch.int32
    assert one.support.device.type == "cpu"
    assert one.support.shape[0] == one.length
    assert (one.support >= 0).any(0).all(), "no wider than needed"
    logits_TV = reference_logits(exact, prompt, one.ids, sampling)
    for place, (token, logp) in enumerate(zip(one.ids, one.logps or (), strict=True)):
        check_support(one.support[place], logits_TV[place], sampling)
        ids = [other for other in one.support[place].tolist() if other >= 0]
        expected = logits_TV[place, ids].log_softmax(-1)[ids.index(token)]
        assert logp == pytest.approx(float(expected), rel=0, abs=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("budget", [None, 120])
def test_completions_have_the_supports_of_the_definition(model: Any, exact: Any, name: str, budget: int | None) -> None:
    torch.manual_seed(1)
    found = sample(model, ROWS, SETTINGS[name], eos_token_ids=[3, 8], max_tokens_in_flight=budget)
    assert len({one.length for one in found}) > 2
    for prompt, one in zip(ROWS, found, strict=True):
        check_completion(exact, prompt, one, SETTINGS[name])
    if name == "top-p":
        assert len({one.support.shape for one in found if one.support is not None}) > 3


@pytest.mark.parametrize("length", [1, 3, 200])
def test_supports_of_long_completions(model: Any, exact: Any, length: int) -> None:
    settings = replace(SETTINGS["top-p, bounded"], max_completion_length=length)
    for prompt, one in zip(ROWS[2:4], sample(model, ROWS[2:4], settings), strict=True):
        assert one.length == length
        check_completion(exact, prompt, one, settings)


@pytest.mark.parametrize("shared", [True, False])
def test_masked_tokens_are_in_no_support(wide_starter: Path, shared: bool) -> None:
    """Reasoning tokens outside of thinking, and nothing that the penalty brings back."""
    engine = LocalEngine(
        AutoModelForCausalLM.from_pretrained(wide_starter),
        AutoTokenizer.from_pretrained(wide_starter),
        shared_prefill=shared,
    )
    vocabulary = ReasoningVocabulary.load(wide_starter)
    text = [{"role": "user", "content": "What is 47 + 35?"}]
    prompt = list(engine.tokenizer.apply_chat_template(text, add_generation_prompt=True)["input_ids"])
    settings = replace(WITH, top_p=0.999, temperature=1.5, repetition_penalty=1.1, support_top_k=400)
    found = engine.generate([prompt] * 12, settings, seed=list(range(12)))
    both = set[bool]()
    for one in found:
        assert one.support is not None
        inside = vocabulary.inside(vocabulary.states(torch.tensor([[*prompt, *one.ids]])))[0, len(prompt) - 1 : -1]
        reasoning = (one.support >= vocabulary.map.base_vocab_size).any(1)
        assert not (reasoning & ~inside).any()
        assert (one.support == torch.tensor(one.ids)[:, None]).any(1).all()
        unusable = torch.tensor(sorted(vocabulary.map.unusable), dtype=torch.int32)
        assert not torch.isin(one.support, unusable).any()
        both |= set(reasoning.tolist())
    assert both == {False, True}


# -- where they are kept


def test_supports_are_kept_by_row_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in any order, places of any length, supports that widen: against lists."""
    draw = torch.Generator().manual_seed(3)
    kept, expected = Supports(4), dict[tuple[int, int], list[int]]()
    monkeypatch.setattr("covey.rollout.local.tokens.MOST_WAITING", 60)
    lengths = [0, 0, 0, 0]
    for step in range(300):
        rows = [row for row in torch.randperm(4, generator=draw).tolist() if torch.rand(1, generator=draw) < 0.7]
        if not rows:
            continue
        sizes = [int(torch.randint(1, 2 + step // 30, (1,), generator=draw)) for _ in rows]
        tokens = [torch.randint(0, 99, (size,), generator=draw).tolist() for size in sizes]
        block = torch.tensor([ids + [-1] * (15 - len(ids)) for ids in tokens], dtype=torch.int32)
        kept.add(rows, [lengths[row] for row in rows], block)
        for row, ids in zip(rows, tokens, strict=True):
            expected[row, lengths[row]] = ids
            lengths[row] += 1
        if step % 7 == 0:
            kept.flush()
    for row, length in enumerate(lengths):
        found = kept.read(row, length - 1)
        assert found is not None
        widest = max(len(expected[row, place]) for place in range(length - 1))
        assert found.shape == (length - 1, widest)
        assert [[token for token in ids if token >= 0] for ids in found.tolist()] == [
            expected[row, place] for place in range(length - 1)
        ]
        assert found.untyped_storage().nbytes() == found.numel() * 4, "what is sent to another process is not more"
    assert Supports(2).read(1, 0) is None
