"""Attention of one new token per completion, over its prompt and over what the completion has written so far.

The rows of a prompt ask it together, and every row asks its own tokens alone. Arithmetic only: which rows and tokens
these are, `covey.rollout.prompt_cache` knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Order:
    """Where rows stand among those that ask one prompt, in a layout with S places for each of P prompts."""

    slots: torch.Tensor
    """For each place and head of keys, in the order prompt, head, place: the row and head that stands there."""
    back: torch.Tensor
    """For each row and head of keys, its place in that layout."""


@dataclass(frozen=True, slots=True)
class Part:
    """Keys and values, and what is hidden of them."""

    keys: torch.Tensor
    """`[P, H, L, d]` of prompts, `[b, H, t, d]` of completions."""
    values: torch.Tensor
    bias: torch.Tensor | None
    """Added to scores: `[b, 1, L]` or `[b, 1, t]`, zero or minus infinity; None where everything is seen."""


def by_products(query_bHgd: torch.Tensor, scaling: float, prompts: Part, own: Part, order: Order) -> torch.Tensor:
    """Products with either part, and one softmax over both.

    Plain products: with few queries for each key, torch's fused attention is not faster on a CPU.

    Args:
        query_bHgd: queries, those of one head of keys side by side.
        scaling: of the scores.
        prompts: the prompts; their tokens may be none.
        own: the rows' own tokens.
        order: who asks which prompt.

    Returns:
        `[b, H, g, d]`.
    """
    b, H, g, d = query_bHgd.shape
    keys, values, prompt_keys, prompt_values = (
        states.flatten(0, 1) for states in (own.keys, own.values, prompts.keys, prompts.values)
    )
    L = prompt_keys.shape[1]
    asked = (query_bHgd * scaling).reshape(b * H, g, d).to(keys.dtype)
    scores = torch.bmm(asked, keys.transpose(1, 2))
    bias = own.bias
    if L:
        together = asked.index_select(0, order.slots).view(len(prompt_keys), -1, d)
        to_prompt = torch.bmm(together, prompt_keys.transpose(1, 2)).view(-1, g, L)
        scores = torch.cat([to_prompt.index_select(0, order.back), scores], dim=-1)
        if own.bias is not None and prompts.bias is not None:
            bias = torch.cat([prompts.bias, own.bias], dim=-1)
    if bias is not None:
        scores.view(b, -1, scores.shape[-1]).add_(bias)
    shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    found = torch.bmm(shares[..., L:], values)
    if L:
        together = shares[..., :L].index_select(0, order.slots).view(len(prompt_keys), -1, L)
        from_prompt = torch.bmm(together, prompt_values).view(-1, g, found.shape[-1])
        found += from_prompt.index_select(0, order.back)
    return found.view(b, H, g, -1)
