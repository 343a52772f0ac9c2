"""Positions of rows that are padded on the left, and whether a model's log-probs depend on that padding."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel

from covey.model.base import base_model, evaluating

_TOKENS, _PADDING = 8, 5


def count_from_first_token(model: Any) -> None:
    """Make a model count positions from the first token of each row, in forwards with a padding mask and no positions.

    transformers counts from the first column, padding included, so that a model with learned positions reads other
    embeddings in a padded row than in generation. Models that take no positions (they use the mask, or distances), and
    those that read images, whose positions follow rules of their own, stay as they are.

    Args:
        model: a transformers model, with adapters or a wrapper or without.
    """
    base = base_model(extract_model_from_parallel(model))
    backbone = getattr(base, "base_model", None)  # every wrapper calls it as a module, so that its hooks run
    config = getattr(base, "config", None)
    if backbone is None or config is None or config.get_text_config() is not config:
        return
    if "position_ids" in signature(backbone.forward).parameters:
        backbone.register_forward_pre_hook(_count, with_kwargs=True)


def _count(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    mask_BS, tokens = kwargs.get("attention_mask"), kwargs.get("input_ids", args[0] if args else None)
    tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
    if kwargs.get("position_ids") is not None or tokens is None or not isinstance(mask_BS, torch.Tensor):
        return None
    width = tokens.shape[1]
    if mask_BS.shape[0] != tokens.shape[0] or mask_BS.ndim != 2 or mask_BS.shape[1] < width:
        return None
    positions_BS = (mask_BS.long().cumsum(1) - 1).clamp(min=0)[:, -width:]  # with a cache, of the new tokens only
    return args, kwargs | {"position_ids": positions_BS}


@torch.no_grad()
def reads_padding(model: torch.nn.Module) -> str | None:
    """Why padding on the left changes a model's log-probs, or None: a few tokens are scored with and without.

    A recurrent state that goes through the padding is such a reason (RWKV, RecurrentGemma).

    Args:
        model: with a fused head, see `SharedScoring`; wrapped or not. Every process must call this.
    """
    base = base_model(extract_model_from_parallel(model))
    config = getattr(base, "config", None)
    if config is None or config.get_text_config() is not config:
        return None  # images come with masks of their own
    device = next(model.parameters()).device
    ids_1S = torch.arange(1, _TOKENS + 1, device=device)[None] % config.vocab_size
    found, mixed = [], torch.is_autocast_enabled(device.type)
    with evaluating(model):
        for padding in (0, _PADDING):
            padded_1S = torch.nn.functional.pad(ids_1S, (padding, 0))
            mask_1S = torch.nn.functional.pad(torch.ones_like(ids_1S), (padding, 0))
            labels_1S = padded_1S.masked_fill(mask_1S == 0, -100)
            labels_1S[:, padding] = -100
            output: Any = model(input_ids=padded_1S, attention_mask=mask_1S, labels=labels_1S, fused_lm_head=True)
            found.append(output.log_probs[:, 1 - _TOKENS :].float())
    difference = float((found[0] - found[1]).abs().mean())
    exact = next(model.parameters()).dtype == torch.float32 and not mixed
    if difference <= (1e-2 if exact else 0.5):  # 16 bits round otherwise in another layout
        return None
    return (
        f"{type(base).__name__} reads the padding on the left of a row, which changes its log-probs by "
        f"{difference:.2g} nats per token"
    )
