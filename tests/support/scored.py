"""Models of several architectures, rows to score, and gradients of the scores."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trl import GRPOTrainer as TRLGRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from covey.training.scoring import SharedScoring

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # large enough that attention to the wrong tokens shows
}
WINDOW = 5

ARCHITECTURES: dict[str, Any] = {
    "qwen2": lambda **more: Qwen2ForCausalLM(Qwen2Config(**SIZES, **more)),
    "qwen3": lambda **more: Qwen3ForCausalLM(Qwen3Config(**SIZES, **more)),
    "llama": lambda **more: LlamaForCausalLM(LlamaConfig(**SIZES, **more)),
    "gemma3": lambda **more: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZES,
            **more,
            sliding_window=WINDOW,
            query_pre_attn_scalar=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        )
    ),
    "mistral": lambda **more: MistralForCausalLM(MistralConfig(**SIZES, **more, sliding_window=WINDOW)),
}

PROMPTS = [[7, 3, 9, 4, 8, 2], [5, 6], [5, 6, 1]]
GROUPS = [[9, 1, 0, 4], [3, 8], [6]]
"""Lengths of the completions for each prompt; one is empty."""


def make(name: str, *, temperature: float = 1.0, **more: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = ARCHITECTURES[name](**more)
    add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))
    return model.train()


def make_rows(vocabulary: int = 61) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Prompts padded on the left, completions on the right, with padding that would change the result if read."""
    generator = torch.Generator().manual_seed(1)
    length, width = max(map(len, PROMPTS)) + 2, max(size for sizes in GROUPS for size in sizes) + 1
    rows, masks = [], []
    for prompt, sizes in zip(PROMPTS, GROUPS, strict=True):
        for size in sizes:
            left, right = length - len(prompt), width - size
            generated = torch.randint(vocabulary, (size + right,), generator=generator)
            rows.append(torch.cat([torch.zeros(left, dtype=torch.long), torch.tensor(prompt), generated]))
            masks.append(torch.tensor([0] * left + [1] * (len(prompt) + size) + [0] * right))
    return torch.stack(rows), torch.stack(masks), width


def plain(model: Any, ids: torch.Tensor, mask: torch.Tensor, width: int, **more: Any) -> Any:
    """Stock TRL's scoring, without a trainer around it."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))
    method = TRLGRPOTrainer._get_per_token_logps_and_entropies
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    return method(trainer, model, ids, mask, width, compute_entropy=True, **more)


def shared(model: Any, ids: torch.Tensor, mask: torch.Tensor, width: int, **more: Any) -> Any:
    scores = SharedScoring().score(model, ids, mask, width, compute_entropy=True, **more)
    assert scores is not None
    return scores


def gradients(model: torch.nn.Module, scores: Any) -> dict[str, torch.Tensor]:
    """Gradients of a loss in which every log-probability and entropy counts differently."""
    model.zero_grad()
    weights = torch.linspace(-1, 1, scores[0].numel()).view_as(scores[0])
    (scores[0] * weights + 0.3 * scores[1] * weights.flip(0)).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
