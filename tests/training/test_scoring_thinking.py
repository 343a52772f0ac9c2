"""Scores under a reasoning vocabulary against a softmax over masked logits, and against the sampler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

import scored
from covey.model.reasoning_vocab import ReasoningVocabulary, TokenMap
from covey.model.reasoning_vocab.tokenizer import TokenBytes
from covey.rollout import SamplingSettings, sample
from covey.rollout.thinking import ThinkingMask
from covey.training.scoring import ScoredRows, SharedScoring
from covey.training.trl.restricted_head import RestrictedHead, give_bias
from scored import plain

BASE, V, T = 40, 75, 0.7
SIZES: dict[str, Any] = {
    **scored.SIZES,
    "num_hidden_layers": 2,
    "vocab_size": V,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MODELS: dict[str, Any] = {
    "qwen3, tied": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)),
    "llama, untied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, query_pre_attn_scalar=8, tie_word_embeddings=False)),
    "phi, a bias": lambda: PhiForCausalLM(PhiConfig(**SIZES, partial_rotary_factor=1.0)),
    "granite, a scale": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=3.0)),
    "gemma2, a bound": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, query_pre_attn_scalar=8, final_logit_softcapping=4.0, attn_logit_softcapping=None)
    ),
}
START = 3
"""`<think>`; the next id is `</think>`."""


def make_vocabulary(start: str) -> ReasoningVocabulary:
    texts = [b"<special>", b"a", b"<special>", b"<think>", b"</think>", *(b"x%d" % n for n in range(BASE - 5))]
    bases = tuple(range(V - BASE))
    token_map = TokenMap(BASE, bases, frozenset(BASE + n for n in (0, 2, 3, 4)), start, "<think>", "</think>")
    return ReasoningVocabulary(token_map, TokenBytes(tuple(texts), frozenset({0, 2})))


def make(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]()
    if getattr(model.lm_head, "bias", None) is not None:
        torch.nn.init.normal_(model.lm_head.bias)
    add_fused_lm_head(model, temperature=T, outputs=("log_probs", "entropy"))
    return model.train()


def make_rows() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Groups of three prompts, one of which opens thinking; completions that open, close and end."""
    generator = torch.Generator().manual_seed(2)
    prompts = [[0, 0, 7, 9, 8], [0, 6, 5, 9, START], [5, START, 9, START + 1, 7]]
    rows, masks = [], []
    for prompt, sizes in zip(prompts, ([9, 2, 5], [7, 9], [1, 8]), strict=True):
        for size in sizes:
            generated = torch.randint(5, BASE, (10,), generator=generator)
            generated[torch.rand(10, generator=generator) < 0.25] = START
            generated[torch.rand(10, generator=generator) < 0.15] = START + 1
            rows.append(torch.tensor([*prompt, *generated.tolist()]))
            masks.append(torch.tensor([int(token != 0) for token in prompt] + [1] * size + [0] * (10 - size)))
    ids, mask = torch.stack(rows), torch.stack(masks)
    vocabulary = make_vocabulary("copy")
    thinks = vocabulary.inside(vocabulary.states(ids, mask))[:, 4:-1]  # before each completion token
    ordinary = ids[:, 5:]
    copy = thinks & (ordinary >= 5) & (ordinary < V - BASE) & (torch.rand(ordinary.shape, generator=generator) < 0.5)
    ids[:, 5:] = torch.where(copy, ordinary + BASE, ordinary)
    assert copy.any()
    return ids, mask, 10


def by_definition(model: Any, vocabulary: ReasoningVocabulary, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies from all logits, masked by state."""
    ids, mask, width = rows
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits.double()
    table = vocabulary.bias_table(T).double().clamp(min=-1e30)
    state = vocabulary.inside(vocabulary.states(ids, mask)).long()
    logps = ((logits + table[state]) / T).log_softmax(-1)
    entropy = -(logps.exp() * logps).sum(-1)
    chosen = logps[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
    counted = mask[:, -width:]
    return chosen[:, -width:] * counted, entropy[:, -width - 1 : -1] * counted


def restricted_plain(model: Any, rows: Any, vocabulary: ReasoningVocabulary | None) -> Any:
    with RestrictedHead(vocabulary).over(ScoredRows(*rows), len(rows[0])):
        return plain(model, *rows)


def shared(model: Any, rows: Any, vocabulary: ReasoningVocabulary, **more: Any) -> Any:
    head = RestrictedHead(vocabulary)
    return SharedScoring().score(model, *rows, restricted=lambda size: head.over(ScoredRows(*rows), size), **more)


def gradients(model: torch.nn.Module, logps: torch.Tensor, entropies: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    weights = torch.linspace(-1, 1, logps.numel()).view_as(logps)
    (logps * weights + 0.3 * entropies * weights.flip(0)).sum().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("start", ["copy", "same_text"])
@pytest.mark.parametrize("name", MODELS)
def test_scores_and_gradients_are_those_of_masked_logits(name: str, start: str) -> None:
    vocabulary = make_vocabulary(start)
    model, rows = make(name), make_rows()
    expected = by_definition(model, vocabulary, rows)
    right = gradients(model, *expected)
    packed = shared(model, rows, vocabulary, rows_per_forward=3, compute_entropy=True)
    assert (packed is None) == name.startswith("gemma2")  # its attention is not one that shares prompts
    for found in (restricted_plain(model, rows, vocabulary), packed):
        if found is None:
            continue
        counted = rows[1][:, -rows[2] :]
        logps, entropies = found[0] * counted, found[1] * counted
        torch.testing.assert_close(logps.double(), expected[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(entropies.double(), expected[1], rtol=0, atol=2e-5)
        scale = max(float(one.norm()) for one in right)
        for one, other in zip(gradients(model, logps, entropies), right, strict=True):
            assert float((one - other).norm()) <= 1e-4 * max(float(other.norm()), 1e-2 * scale)


def test_outside_of_thinking_scores_are_those_of_the_model_before_expansion() -> None:
    vocabulary = make_vocabulary("same_text")
    model = make("llama, untied")
    ids, mask, width = make_rows()
    ids = ids.clone()
    ids[ids == START] = 5
    ids[ids >= BASE] -= BASE
    base = MODELS["llama, untied"]()
    base.load_state_dict(model.state_dict(), strict=True)
    base.resize_token_embeddings(BASE, mean_resizing=False)
    add_fused_lm_head(base, temperature=T, outputs=("log_probs", "entropy"))
    rows = ids, mask, width
    found, expected = restricted_plain(model, rows, vocabulary), restricted_plain(base, rows, None)
    counted = mask[:, -width:].bool()
    assert torch.equal(found[0][counted], expected[0][counted])
    assert torch.equal(found[1][counted], expected[1][counted])


def test_rows_trained_by_adapters_are_scored_with_their_current_values() -> None:
    vocabulary = make_vocabulary("copy")
    rows = make_rows()
    for name, tables in (("qwen3, tied", ["embed_tokens"]), ("llama, untied", ["embed_tokens", "lm_head"])):
        base = make(name)
        with torch.no_grad():
            initial = restricted_plain(base, rows, vocabulary)[0]
        trained = {table: list(range(BASE + 5, V)) for table in tables}
        model: Any = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", trainable_token_indices=trained))
        give_bias(base)
        with torch.no_grad():
            for parameter in (p for n, p in model.named_parameters() if "trainable_tokens_delta" in n):
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)) * 0.3)
            expected, _ = by_definition(model, vocabulary, rows)
            found = restricted_plain(model, rows, vocabulary)[0] * rows[1][:, -rows[2] :]
            packed = shared(model, rows, vocabulary)
            with model.disable_adapter():
                reference = restricted_plain(model, rows, vocabulary)[0]
        assert packed is not None
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(packed[0].double(), expected, rtol=0, atol=2e-5)
        torch.testing.assert_close(reference, initial)
        assert float((found - initial * rows[1][:, -rows[2] :]).abs().max()) > 0.1


@pytest.mark.parametrize("start", ["copy", "same_text"])
@pytest.mark.parametrize("name", ["qwen3, tied", "llama, untied", "gemma3"])
def test_sampled_tokens_have_the_same_log_probs_in_scoring(name: str, start: str) -> None:
    """On policy the ratio is 1: the sampler's log-probabilities are those of the scoring, at every token."""
    vocabulary = make_vocabulary(start)
    model = make(name).eval()
    prompts = [[7, 9, 8]] * 6 + [[6, 5, 9, START]] * 6
    mask = ThinkingMask(vocabulary, temperature=T)
    found = sample(
        model,
        prompts,
        SamplingSettings(24, temperature=T, logprobs=True),
        eos_token_ids=[2],
        logits_processors=[mask],
        generator=torch.Generator().manual_seed(5),
    )
    width = max(len(one.ids) for one in found)
    ids = torch.tensor(
        [[0] * (4 - len(p)) + p + f.ids + [0] * (width - len(f.ids)) for p, f in zip(prompts, found, strict=True)]
    )
    seen = torch.tensor(
        [
            [0] * (4 - len(p)) + [1] * (len(p) + len(f.ids)) + [0] * (width - len(f.ids))
            for p, f in zip(prompts, found, strict=True)
        ]
    )
    drawn = torch.tensor([(f.logps or []) + [0.0] * (width - len(f.ids)) for f in found])
    assert int((ids >= BASE).sum()) > 10
    with torch.no_grad():
        rows = ids, seen, width
        scores = shared(model, rows, vocabulary)
        others = restricted_plain(model, rows, vocabulary)[0] * seen[:, -width:]
    assert scores is not None
    torch.testing.assert_close(scores[0], drawn, rtol=0, atol=2e-5)
    torch.testing.assert_close(others, drawn, rtol=0, atol=2e-5)
