"""The memory estimate: by hand, and against what autograd saves in a forward pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from trl.trainer.utils import add_fused_lm_head

from covey.config import Config, compose
from covey.model.memory import estimate_memory
from covey.model.starter import STARTER_PATH
from covey.training.scoring import SharedScoring

GROUPS = ("training.num_generations=4", "training.per_device_train_batch_size=8", "training.max_completion_length=10")
PLAIN = (*GROUPS, "training.beta=0", "training.gradient_accumulation_steps=1", "training.gradient_checkpointing=false")
PROMPT = 6


def load(*words: str) -> Config:
    return compose([*PLAIN, "training.bf16=false", *words]).config


def small(kind: type[PretrainedConfig] = Qwen3Config, **sizes: Any) -> PretrainedConfig:
    settings = {
        **{"vocab_size": 100, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4},
        **{"tie_word_embeddings": True, "max_position_embeddings": 64},
    }
    return kind(**{**settings, **sizes})


def test_the_estimate_by_hand() -> None:
    need = estimate_memory(load("training.beta=0.1"), small(), PROMPT)
    # embeddings 100·8; a layer: q 8·8, k and v 8·4 each, o 8·8, their norms 2·4, mlp 3·8·16, two norms; the last norm
    assert need.parameters == 800 + 2 * (64 + 32 + 32 + 64 + 8 + 384 + 16) + 8
    assert need.trained == need.parameters
    assert need.weights == 2 * 4 * need.parameters  # policy and reference, float32
    assert (need.gradients, need.moments) == (4 * need.parameters, 2 * 4 * need.parameters)
    assert estimate_memory(load(), small(), PROMPT).weights == 4 * need.parameters
    # Two prompts of a generation batch of eight, each once, and eight completions; float32 logits, three times; a copy
    # of the weights for the plain decoder, without a GPU.
    laid_out = (2 if torch.cuda.is_available() else 4) * need.parameters
    assert need.cache == (2 * 6 + 8 * 10) * (2 * 2 * 4 * 4) + 3 * 8 * 100 * 4 + laid_out
    plain = estimate_memory(load("speed.shared_prefill=false"), small(), PROMPT)
    assert plain.cache == 8 * 16 * (2 * 2 * 4 * 4) + 3 * 8 * 100 * 4
    assert estimate_memory(load("training.use_vllm=true"), small(), PROMPT).cache == 0


def test_a_gpu_samples_with_weights_that_are_cast_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    mixed, plain = (estimate_memory(load(f"training.bf16={on}"), small(), PROMPT) for on in ("true", "false"))
    assert mixed.cache == (2 * 6 + 8 * 10) * (2 * 2 * 4 * 2) + 3 * 8 * 100 * 4 + 2 * mixed.parameters
    assert plain.cache == (2 * 6 + 8 * 10) * (2 * 2 * 4 * 4) + 3 * 8 * 100 * 4


def test_the_head_is_counted_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU 4096 tokens by 32768 words at a time; in full, 8000 by 150,000 would be 4.8 GB."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    large = small(vocab_size=150_000)
    need = estimate_memory(load("training.max_completion_length=1000", "training.bf16=true"), large, PROMPT)
    assert need.head == 4096 * 32768 * 2 + 8000 * 8 * 4 + 150_000 * 8 * 4
    lora = load("training.max_completion_length=1000", "training.bf16=true", "model.lora.rank=4")
    frozen = estimate_memory(lora, large, PROMPT)
    assert frozen.head == 4096 * 32768 * 2 + 8000 * 8 * 4


def test_the_estimate_counts_the_starter() -> None:
    counted = AutoModelForCausalLM.from_pretrained(STARTER_PATH).num_parameters()
    assert estimate_memory(load(), AutoConfig.from_pretrained(STARTER_PATH), 20).parameters == counted


@pytest.mark.parametrize("kind", [Qwen2Config, Qwen3Config, LlamaConfig, MistralConfig])
def test_a_described_model_is_like_a_counted_one(kind: type[PretrainedConfig]) -> None:
    """By `config.json` alone, as a launch plan does; biases, the norms' weights and norms of queries are left out."""
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = small(kind, **sizes, head_dim=16, tie_word_embeddings=False, vocab_size=1000)
    counted = estimate_memory(load(), model, PROMPT, on_gpu=True)
    described = estimate_memory(load(), SimpleNamespace(**model.to_dict()), PROMPT, on_gpu=True)
    assert described.parameters == pytest.approx(counted.parameters, rel=0.01)
    assert described.training == pytest.approx(counted.training, rel=0.05)
    assert described.cache == pytest.approx(counted.cache, rel=0.01)


def test_gradients_and_activations_coexist_only_under_accumulation() -> None:
    one, two = load(), load("training.gradient_accumulation_steps=2")
    need, adds = (estimate_memory(config, small(), PROMPT) for config in (one, two))
    assert adds.training - adds.gradients == need.training == need.weights + need.moments + need.activations + need.head
    budget = estimate_memory(load("speed.max_tokens=48"), small(), PROMPT)
    assert budget.accumulates
    assert budget.activations * (12 + 80) == pytest.approx(need.activations * 48)


@pytest.mark.parametrize("kind", [Qwen2Config, Qwen3Config, LlamaConfig, MistralConfig, Gemma3TextConfig])
@pytest.mark.parametrize("shared", [True, False])
def test_activations_are_what_autograd_saves(kind: type[PretrainedConfig], shared: bool) -> None:
    """Measured through hooks on every tensor that a forward pass saves, weights aside; of layers beyond the first. The
    shared path may keep less, where it has norms of its own, but not more.
    """
    config = load(f"speed.shared_scoring={str(shared).lower()}")
    sizes = {"hidden_size": 32, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes["head_dim"] = 8 if kind is Qwen2Config else 12
    one, three = (small(kind, **sizes, num_hidden_layers=layers) for layers in (1, 3))
    kept = kept_by_autograd(three, shared=shared) - kept_by_autograd(one, shared=shared)
    estimates = [estimate_memory(config, model, PROMPT).activations for model in (one, three)]
    estimate = estimates[1] - estimates[0]
    assert kept <= 1.03 * estimate  # the rest: one number a token or head
    assert kept >= (0.8 if shared else 0.97) * estimate


@pytest.mark.parametrize("kind", [Qwen2Config, Qwen3Config, LlamaConfig, Gemma3TextConfig])
def test_activations_of_mixed_precision(kind: type[PretrainedConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of weights among them, as TRL trains on a GPU; here with autocast on the CPU."""
    sizes = {"hidden_size": 32, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes["head_dim"] = 8 if kind is Qwen2Config else 12
    one, three = (small(kind, **sizes, num_hidden_layers=layers) for layers in (1, 3))
    with torch.autocast("cpu", torch.bfloat16):
        kept = kept_by_autograd(three, shared=False) - kept_by_autograd(one, shared=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    config = compose([*PLAIN, "speed.shared_scoring=false"]).config  # bf16 is TRL's default
    estimates = [estimate_memory(config, model, PROMPT).activations for model in (one, three)]
    assert estimates[1] - estimates[0] == pytest.approx(kept, rel=0.15)


def kept_by_autograd(model_config: PretrainedConfig, *, shared: bool) -> int:
    """Bytes of all tensors that a forward pass over two groups of four keeps, each counted once."""
    model = AutoModelForCausalLM.from_config(model_config)
    add_fused_lm_head(model)
    ids = torch.randint(5, 60, (8, PROMPT + 10), generator=torch.Generator().manual_seed(0))
    ids[1:4, :PROMPT], ids[5:, :PROMPT] = ids[0, :PROMPT], ids[4, :PROMPT]
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if shared:
            assert SharedScoring().score(model, ids, torch.ones_like(ids), 10) is not None
        else:
            labels = ids.clone()
            labels[:, :PROMPT] = -100
            model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, fused_lm_head=True)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
