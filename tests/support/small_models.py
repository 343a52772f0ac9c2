"""Sizes of models that are made in a moment and whose attention to the wrong tokens shows."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 40
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
ARCHITECTURES: dict[str, PretrainedConfig] = {
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL),
    "llama": LlamaConfig(**SMALL),
    "gemma3": Gemma3TextConfig(
        **SMALL,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
        tie_word_embeddings=False,  # tied and of random weights, it only repeats itself
    ),
    "mistral": MistralConfig(**SMALL, sliding_window=8),
}


def build(name: str) -> Any:
    """A model of one of these architectures, of random weights."""
    torch.manual_seed(2)
    return AutoModelForCausalLM.from_config(ARCHITECTURES[name]).eval()
