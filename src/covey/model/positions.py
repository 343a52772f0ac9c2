"""Positions of rows that are padded on the left, and whether a model is scored as it samples."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel, is_compiled_module
from torch.nn.functional import pad

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
def score_gaps(model: Any, temperature: float) -> tuple[float, float]:
    """How far the fused head's log-probs of a few tokens are from those of the model's own logits.

    Args:
        model: with a fused head, see `SharedScoring`; wrapped or not. Every process must call this.
        temperature: of the fused head.

    Returns:
        Mean differences in nats per token, 0 where rounding explains them: of a row as it is (an architecture may
        change its logits after the head in a way that the fused one does not know), and of a row padded on the left (a
        recurrent state may go through the padding).
    """
    base = base_model(extract_model_from_parallel(model))
    config = getattr(base, "config", None)
    if config is None or config.get_text_config() is not config:
        return 0.0, 0.0  # images come with masks of their own
    if is_compiled_module(model):
        model = model._orig_mod
    device, gaps = next(model.parameters()).device, list[float]()
    ids_1S = torch.arange(1, _TOKENS + 1, device=device)[None] % config.vocab_size
    exact = next(model.parameters()).dtype == torch.float32 and not torch.is_autocast_enabled(device.type)
    with evaluating(model):
        logits_SV = model(input_ids=ids_1S, attention_mask=torch.ones_like(ids_1S), use_cache=False).logits[
            0, -_TOKENS:
        ]
        logps_SV = (output.logits[0, -_TOKENS:-1].float() / temperature).log_softmax(-1)
        own_S = logps_SV.gather(1, ids_1S[0, 1:, None])[:, 0]
        for padding in (0, _PADDING):
            padded_1S = pad(ids_1S, (padding, 0))
            mask_1S = pad(torch.ones_like(ids_1S), (padding, 0))
            labels_1S = padded_1S.masked_fill(mask_1S == 0, -100)
            output = model(input_ids=padded_1S, attention_mask=mask_1S, labels=labels_1S, fused_lm_head=True)
            gaps.append(float((output.log_probs[0, 1 - _TOKENS :].float() - own_S).abs().mean()))
    rounding = 0.05 if exact else 0.5  # 16 bits, summed over layers, in another layout
    return (gaps[0] if gaps[0] > rounding else 0.0), (gaps[1] if gaps[1] > rounding else 0.0)
