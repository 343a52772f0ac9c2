"""The forwards of sampling: a prompt with the model's own attention, and new tokens of rows over the shared cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from covey.model.device import on_device
from covey.rollout.local.prompt_cache import SharedPromptCache
from covey.rollout.local.shared_attention import CACHE


def prefill(model: Any, prompts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, DynamicCache]:
    """Compute prompts with the model's own attention.

    Returns:
        The logits of the token after each prompt, `[P, V]`, and the filled cache.
    """
    longest = max(map(len, prompts))
    ids_PL = on_device([[pad] * (longest - len(ids)) + list(ids) for ids in prompts], model.device)
    cache = DynamicCache(config=model.config)
    masks: dict[str, torch.Tensor] = {}
    if min(map(len, prompts)) < longest:
        mask_PL = on_device([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts], model.device)
        masks = {"attention_mask": mask_PL, "position_ids": (mask_PL.cumsum(-1) - 1).clamp(min=0)}
    out = model(input_ids=ids_PL, past_key_values=cache, use_cache=True, logits_to_keep=1, **masks)
    return out.logits[:, -1], cache


def step(model: Any, cache: SharedPromptCache, tokens_bR: torch.Tensor) -> torch.Tensor:
    """Append R tokens to every row, with shared attention, and return the logits of the next, `[b, V]`."""
    cache.begin(tokens_bR.shape[1])
    out = model(
        input_ids=tokens_bR,
        position_ids=cache.positions(),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
        **{CACHE: cache},
    )
    cache.end()
    logits_bV: torch.Tensor = out.logits[:, -1]
    return logits_bV
