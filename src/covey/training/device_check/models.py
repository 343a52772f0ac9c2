"""Models of random weights and rows to score, for the checks of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a model; grouped-query attention has fewer key heads than heads."""

    width: int
    layers: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int


TINY = Size(width=64, layers=2, heads=4, key_heads=2, inner=96, vocabulary=512)
SMALL = Size(width=1024, layers=4, heads=16, key_heads=2, inner=2816, vocabulary=8192)
HALF_BILLION = Size(width=896, layers=24, heads=14, key_heads=2, inner=4864, vocabulary=151936)
"""As Qwen2.5-0.5B."""


def make_model(size: Size, *, attention: str | None = None, longest: int = 4096) -> Any:
    """A Qwen2 of random weights in float32, whose attention tells tokens apart.

    Args:
        attention: `attn_implementation`; None takes transformers' default.
        longest: context in tokens.
    """
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        intermediate_size=size.inner,
        vocab_size=size.vocabulary,
        max_position_embeddings=longest,
        initializer_range=size.width**-0.5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    if attention is not None:
        config._attn_implementation = attention
    return Qwen2ForCausalLM(config)


@dataclass(frozen=True, slots=True)
class Rows:
    """Prompts, padded on the left, and completions, padded on the right: `[B, L + T]`."""

    ids: torch.Tensor
    mask: torch.Tensor
    length: int
    """T, the number of completion columns."""


def make_rows(size: Size, group: int, prompt: int, completion: int, device: torch.device) -> Rows:
    """Two groups with prompts of different lengths and completions from 1 token to the longest.

    Args:
        size: for the number of tokens.
        group: completions of each prompt.
        prompt: tokens of the longer prompt.
        completion: tokens of the longest completion.
        device: of the tensors.
    """
    generator = torch.Generator().manual_seed(group)
    prompts = torch.randint(2, size.vocabulary, (2, prompt), generator=generator).repeat_interleave(group, 0)
    prompt_mask = torch.ones_like(prompts)
    prompt_mask[group:, : prompt // 3] = 0
    completions = torch.randint(2, size.vocabulary, (2 * group, completion), generator=generator)
    lengths = torch.linspace(1, completion, 2 * group).long()
    mask = torch.cat([prompt_mask, (torch.arange(completion) < lengths[:, None]).long()], dim=1)
    return Rows(torch.cat([prompts, completions], dim=1).to(device), mask.to(device), completion)
