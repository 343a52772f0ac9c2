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


def by_parts(
    query_bHgd: torch.Tensor, scaling: float, prompts: Part, own: Part, order: Order, prompt_bias: torch.Tensor | None
) -> torch.Tensor:
    """Each part with a softmax of its own, and the two put together by the sums that these divided by.

    With `l` the logarithm of such a sum, the answer is `sigmoid(l_own - l_prompt)` parts of the own one and the rest of
    the prompt's. So scores stay where they are, and only answers go from the order of prompts to that of rows.

    Args:
        query_bHgd: queries, those of one head of keys side by side.
        scaling: of the scores.
        prompts: the prompts; there is at least one token of each, and every row sees one of them.
        own: the rows' own tokens; every row sees one of them.
        order: who asks which prompt.
        prompt_bias: `[P, 1, 1, L]`, in place of the one of the part.

    Returns:
        `[b, H, g, d]`.
    """
    b, H, g, d = query_bHgd.shape
    asked = (query_bHgd * scaling).reshape(b * H, g, d)
    together = asked.index_select(0, order.slots).view(len(prompts.keys) * H, -1, d)
    by_prompt, prompt_sum = _attend(together, prompts, None if prompt_bias is None else prompt_bias.squeeze(1))
    by_own, own_sum = _attend(asked, own, own.bias)
    by_prompt = by_prompt.view(-1, g, by_own.shape[-1]).index_select(0, order.back)
    share = torch.sigmoid(own_sum - prompt_sum.view(-1, g).index_select(0, order.back))
    return torch.lerp(by_prompt, by_own, share[..., None]).view(b, H, g, -1)


def _attend(asked: torch.Tensor, part: Part, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What the queries `[n * H, q, d]` find in a part of `[n, H, t, d]`, and the logarithm of the sum, `[n * H, q]`.

    Plain products: with few queries for each key, torch's fused attention is not faster on a CPU.
    """
    keys, values = part.keys.flatten(0, 1), part.values.flatten(0, 1)
    scores = torch.bmm(asked, keys.transpose(1, 2))
    if bias is not None:
        scores.view(len(bias), -1, scores.shape[-1]).add_(bias)
    highest = scores.amax(-1)
    shares = scores.softmax(-1)
    return torch.bmm(shares, values), highest.sub_(shares.amax(-1).log_())


def parts_apply(query: torch.Tensor, prompts: Part, own: Part, prompt_bias: torch.Tensor | None) -> bool:
    """Whether `by_parts` can be used: float32 on a CPU, and what is hidden of a prompt is so for all its rows."""
    tensors = (query, prompts.keys, own.keys, own.values)
    plain = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    known = prompts.bias is None or prompt_bias is not None
    return plain and known and prompts.keys.shape[2] > 0


def by_products(query_bHgd: torch.Tensor, scaling: float, prompts: Part, own: Part, order: Order) -> torch.Tensor:
    """Products with either part, and one softmax over both.

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
