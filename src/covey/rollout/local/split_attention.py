"""Attention of new tokens of completions, over the prompt and over the completion's own tokens so far.

The queries of a prompt's rows are batched over the prompt; each row attends to its own tokens alone. Arithmetic only:
`covey.rollout.local.prompt_cache` keeps track of rows and tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from covey.model.device import for_products


@dataclass(frozen=True, slots=True)
class Order:
    """How rows map to a layout with G slots for each of P prompts."""

    slots: torch.Tensor
    """For each slot and key head, in the order prompt, head, slot: the row and head in it."""
    back: torch.Tensor
    """For each row and key head, its slot in that layout."""


@dataclass(frozen=True, slots=True)
class Part:
    """Keys and values, and the mask over them."""

    keys: torch.Tensor
    """`[P, H, L, D]` of prompts, `[b, H, t, D]` of completions."""
    values: torch.Tensor
    bias: torch.Tensor | None
    """Added to scores: `[b, R, L]` or `[b, R, t]`, zero or minus infinity; None where nothing is masked."""


def split_attention(
    query_bHgD: torch.Tensor, scaling: float, prompts: Part, completions: Part, order: Order
) -> torch.Tensor:
    """Products with either part, and one softmax over both.

    Plain products: with few queries for each key, torch's fused attention is not faster on a CPU.

    Args:
        query_bHgD: queries, grouped by key head; with R new tokens, those of a query head one after another.
        scaling: of the scores.
        prompts: the prompts; L may be 0.
        completions: the rows' own tokens.
        order: which rows belong to which prompt.

    Returns:
        `[b, H, g, D]`.
    """
    b, H, g, D = query_bHgD.shape
    keys, values, prompt_keys, prompt_values = (
        states.flatten(0, 1) for states in (completions.keys, completions.values, prompts.keys, prompts.values)
    )
    L = prompt_keys.shape[1]
    scaled = (query_bHgD * scaling).reshape(b * H, g, D).to(keys.dtype)
    scores = _product(scaled, keys.transpose(1, 2))
    bias = completions.bias
    if L:
        grouped = scaled.index_select(0, order.slots).view(len(prompt_keys), -1, D)
        to_prompt = _product(grouped, prompt_keys.transpose(1, 2)).view(-1, g, L)
        scores = torch.cat([to_prompt.index_select(0, order.back), scores], dim=-1)
        if completions.bias is not None and prompts.bias is not None:
            bias = torch.cat([prompts.bias, completions.bias], dim=-1)
    if bias is not None:
        scores.view(b, -1, *bias.shape[1:]).add_(bias[:, None])
    shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    found = _product(shares[..., L:], values)
    if L:
        grouped = shares[..., :L].index_select(0, order.slots).view(len(prompt_keys), -1, L)
        from_prompt = _product(grouped, prompt_values).view(-1, g, found.shape[-1])
        found += from_prompt.index_select(0, order.back)
    return found.view(b, H, g, -1)


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The batched product; of 16-bit numbers on CUDA in float32, as it is accumulated.

    Rounded scores, and rounded sums of two parts, would put the sampler further from the scorer than `generate` is.
    """
    left, right = for_products(left), for_products(right)
    if left.device.type != "cuda" or left.dtype == torch.float32 or torch.version.hip is not None:
        return torch.bmm(left, right)
    with torch.autocast("cuda", enabled=False):
        return torch.bmm(left, right, out_dtype=torch.float32)
