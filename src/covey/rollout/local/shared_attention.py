"""Replaces the attention of a model's layers by attention over the shared cache, during generation."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from covey.model.base import base_model
from covey.rollout.local.prompt_cache import NotSharedError, SharedLayer

ATTENTION = "covey_shared_prompt"
"""The name of `attend` among transformers' attention functions."""

CACHE = "covey_cache"
"""The argument of a model's forward, passed on to attention, that holds the cache."""

SUPPORTED = frozenset(
    {"position_ids", "cache_position", "use_cache", "output_attentions", "output_router_logits", "is_causal"}
)
"""Further arguments of attention that have no effect: positions are in the queries, and the cache has the masks."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers' layers call; keys and values are in the cache already. Raises a
    `NotSharedError` if the model's attention does something that is not supported here."""
    cache = kwargs.pop(CACHE, None)
    if cache is None:
        raise NotSharedError("the model does not pass further arguments on to its attention")
    layer = cache.layers[module.layer_idx]
    if not layer.checked:
        _check_call(layer, query, attention_mask, kwargs)
        layer.checked = True
    return cache.attend(layer, query, query.shape[-1] ** -0.5 if scaling is None else scaling), None


class SharedAttention:
    """Lets a model's layers call `attend` during generation; on exit, its own attention is restored."""

    def __init__(self, model: Any) -> None:
        self._model = base_model(model)
        self._own: str = self._model.config._attn_implementation
        self._shared = False

    def share(self, shared: bool) -> None:
        """Use the shared attention, or the model's own; switching walks the whole model, so only on a change."""
        if shared != self._shared:
            self._model.set_attn_implementation(ATTENTION if shared else self._own)
            self._shared = shared

    def __enter__(self) -> SharedAttention:
        return self

    def __exit__(self, *_: object) -> None:
        self.share(False)


def _check_call(layer: SharedLayer, query: torch.Tensor, mask: torch.Tensor | None, more: dict[str, Any]) -> None:
    window = more.pop("sliding_window", layer.window)
    unknown = sorted(name for name, value in more.items() if name not in SUPPORTED and value is not None)
    if unknown:
        raise NotSharedError(f"the model's attention takes {', '.join(unknown)}")
    if window != layer.window:
        raise NotSharedError(f"a layer attends over {window} tokens and caches {layer.window}")
    if mask is not None or query.shape[2] != layer.owner.count:
        raise NotSharedError("the model makes an attention mask of its own")


AttentionInterface.register(ATTENTION, attend)
