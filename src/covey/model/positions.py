"""Positions of rows that are padded on the left, and whether a model is scored as it samples."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel, is_compiled_module
from torch.nn.functional import pad

from covey.model.device import base_model, evaluating

_TOKENS, _PADDING = 8, 5


def count_from_first_token(model: Any) -> None:
    """Make a model count positions from the first token of each row, in forwards with a padding mask and no positions.

    transformers counts padding too, so that a model with learned positions reads other embeddings in a padded row than
    in generation. Models that take no positions (they use the mask), to which only distances matter (so that their
    numbers stay TRL's to the bit), and those that read images, whose positions follow rules of their own, stay as they
    are.
    """
    model = extract_model_from_parallel(model)
    base, adapters = base_model(model), getattr(model, "active_peft_config", None)
    if not _reads_only_text(base):
        return
    rope = str(getattr(base.config, "rope_parameters", None) or "dynamic")  # by layer type in some models
    by_distance = not any(kind in rope for kind in ("dynamic", "longrope"))  # these scale by the last position
    by_distance &= not getattr(adapters, "is_prompt_learning", False)  # whose tokens come before the padding
    # Every wrapper calls the backbone as a module, so that its hooks run.
    if not by_distance and "position_ids" in signature(base.base_model.forward).parameters:
        base.base_model.register_forward_pre_hook(_count, with_kwargs=True)


def _count(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    mask: Any = kwargs.get("attention_mask")
    tokens = next(one for one in (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if one is not None)
    if kwargs.get("position_ids") is not None or getattr(mask, "ndim", 0) != 2 or len(mask) != len(tokens):
        return None
    positions_BS = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]  # without those in a cache
    return args, kwargs | {"position_ids": positions_BS}


def _reads_only_text(base: Any) -> bool:
    config = getattr(base, "config", None)
    return config is not None and config.get_text_config() is config


@torch.no_grad()
def score_gaps(model: Any, temperature: float) -> tuple[float, float]:
    """How far the fused head's log-probs of a few tokens are from those of the model's own logits.

    Every process must call this. The model, wrapped or not, has a fused head of this temperature.

    Returns:
        Mean differences in nats per token, 0 where rounding explains them: of a row as it is (the model may change its
        logits after the head), and of a row padded on the left (a recurrent state may go through the padding).
    """
    base, first = base_model(extract_model_from_parallel(model)), next(model.parameters())
    if not _reads_only_text(base):
        return 0.0, 0.0
    model, gaps = model._orig_mod if is_compiled_module(model) else model, list[float]()
    ids_1S = torch.arange(1, _TOKENS + 1, device=first.device)[None] % base.config.vocab_size
    exact = first.dtype == torch.float32 and not torch.is_autocast_enabled(first.device.type)
    with evaluating(model):
        own = model(input_ids=ids_1S, attention_mask=torch.ones_like(ids_1S), use_cache=False)
        logps_SV = (own.logits[0, -_TOKENS:-1].float() / temperature).log_softmax(-1)
        own_S = logps_SV.gather(1, ids_1S[0, 1:, None])[:, 0]
        for left in ((0, 0), (_PADDING, 0)):
            tokens, mask = {"input_ids": pad(ids_1S, left)}, pad(torch.ones_like(ids_1S), left)
            output = model(**tokens, attention_mask=mask, labels=pad(ids_1S, left, value=-100), fused_lm_head=True)
            gaps.append(float((output.log_probs[0, 1 - _TOKENS :].float() - own_S).abs().mean()))
    gap, padded_gap = (one if one > (0.05 if exact else 0.5) else 0.0 for one in gaps)
    return gap, padded_gap
