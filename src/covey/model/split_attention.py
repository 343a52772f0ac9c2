"""Attention over shared prompts, with a fused kernel and no mask for each prompt and each completion.

A completion attends to its prompt and to itself. The two are computed separately, the prompt for all completions of the
group at once, and merged by their log-sum-exps ("bifurcated attention", Athiwaratkun et al. 2024, arXiv:2403.08845,
here with gradients). The backward pass needs no merging: the kernel recomputes a token's attention weights from its
output and log-sum-exp, so with those of the merged attention it gives the gradients of either part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.autograd.function import once_differentiable

_FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_FLASH_BACK = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)

GroupSizes = tuple[int, tuple[int, ...]]
"""Tokens of a prompt, and of each of its completions."""


def split_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: Sequence[GroupSizes], scaling: float | None
) -> torch.Tensor:
    """Attention in which every completion sees its own prompt and itself, causally.

    Args:
        query: `[1, H·g, N, D]`.
        key: `[1, H, N, D]`.
        value: like `key`.
        groups: the N tokens: of each group its prompt, then its completions.
        scaling: factor of the scores; None means `1/√D`.

    Returns:
        `[1, H·g, N, D]`.
    """
    factor = query.size(-1) ** -0.5 if scaling is None else scaling
    out: torch.Tensor = _SplitAttention.apply(query, key, value, tuple(groups), factor)  # type: ignore[no-untyped-call]
    return out


def split_supported(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether `split_attention` can be used: on a CPU and in full precision, since each part is rounded."""
    tensors = (query, key, value)
    plain = all(one.device.type == "cpu" and one.dtype in (torch.float32, torch.float64) for one in tensors)
    known = _FLASH is not None and _FLASH_BACK is not None
    return known and plain and not torch.is_autocast_enabled("cpu") and value.size(-1) == key.size(-1)


def _spans(groups: Sequence[GroupSizes]) -> Iterator[tuple[slice, slice, list[slice]]]:
    """Of each group the slices of the prompt, of all its completions, and of each completion."""
    start = 0
    for prompt, completions in groups:
        ends = list(accumulate(completions, initial=start + prompt))
        rows = [slice(first, last) for first, last in pairwise(ends)]
        yield slice(start, start + prompt), slice(start + prompt, ends[-1]), rows
        start = ends[-1]


class _SplitAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        groups: tuple[GroupSizes, ...],
        scaling: float,
    ) -> torch.Tensor:
        assert _FLASH is not None
        _, heads, length, width = query.shape
        # The kernels keep heads behind places.
        out_by_token = query.new_empty(1, length, heads, width)
        sums_by_token = query.new_empty(1, length, heads, dtype=torch.promote_types(query.dtype, torch.float32))
        for prompt, completions, rows in _spans(groups):
            for part in (prompt, *rows):
                own = (tensor[:, :, part] for tensor in (query, key, value))
                found, part_sums = _FLASH(*own, is_causal=True, scale=scaling)
                out_by_token[:, part], sums_by_token[:, part] = found.transpose(1, 2), part_sums.transpose(1, 2)
            if rows:
                states = (query[:, :, completions], key[:, :, prompt], value[:, :, prompt])
                found, part_sums = _FLASH(*states, scale=scaling)
                own_sums, part_sums = sums_by_token[:, completions], part_sums.transpose(1, 2)
                share = torch.sigmoid(part_sums - own_sums).to(found.dtype)
                out_by_token[:, completions].lerp_(found.transpose(1, 2), share[..., None])
                sums_by_token[:, completions] = torch.logaddexp(own_sums, part_sums)
        out, sums = out_by_token.transpose(1, 2), sums_by_token.transpose(1, 2)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.groups, ctx.scaling = groups, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        assert _FLASH_BACK is not None
        query, key, value, out, sums = ctx.saved_tensors

        def back(asking: slice, seen: slice, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            states = (query[:, :, asking], key[:, :, seen], value[:, :, seen])
            of_whole = (out[:, :, asking], sums[:, :, asking])
            found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _FLASH_BACK(
                grad[:, :, asking], *states, *of_whole, 0.0, causal, scale=ctx.scaling
            )
            return found

        to_query, to_key, to_value = (_like(states) for states in (query, key, value))
        for prompt, completions, rows in _spans(ctx.groups):
            for part in (prompt, *rows):
                to_query[:, :, part], to_key[:, :, part], to_value[:, :, part] = back(part, part, causal=True)
            if rows:
                more_query, more_key, more_value = back(completions, prompt, causal=False)
                to_query[:, :, completions] += more_query
                to_key[:, :, prompt] += more_key
                to_value[:, :, prompt] += more_value
        return to_query, to_key, to_value, None, None


def _like(states: torch.Tensor) -> torch.Tensor:
    """An empty gradient, in the memory order of `[1, N, heads, D]`."""
    return states.new_empty(states.transpose(1, 2).shape).transpose(1, 2)
