"""Attention over a layout of shared prompts, each prompt and each completion in a fused kernel without a mask.

A completion looks at its prompt and at itself. These are computed apart, the prompt for all completions of the group at
once, and put together by the logarithms of the sums that their softmaxes divided by ("bifurcated attention",
Athiwaratkun et al. 2024, arXiv:2403.08845, here with gradients). Going back needs no putting together: the kernel's
backward pass recovers a token's shares from its output and that logarithm, so with those of the whole it gives either
part's own gradients.
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


def in_parts(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: Sequence[GroupSizes], scaling: float | None
) -> torch.Tensor:
    """Attention in which every completion sees its own prompt and itself, causally.

    Args:
        query: `[1, heads, N, D]`.
        key: `[1, key heads, N, D]`; the key heads divide the heads.
        value: like `key`.
        groups: what the N tokens are: of each group its prompt, then its completions.
        scaling: what the scores are multiplied by; None means `1/√D`.

    Returns:
        `[1, heads, N, D]`.
    """
    factor = query.size(-1) ** -0.5 if scaling is None else scaling
    out: torch.Tensor = _InParts.apply(query, key, value, tuple(groups), factor)  # type: ignore[no-untyped-call]
    return out


def parts_apply(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether `in_parts` can be used: on a CPU and in full precision, since the parts are rounded one by one."""
    tensors = (query, key, value)
    plain = all(one.device.type == "cpu" and one.dtype in (torch.float32, torch.float64) for one in tensors)
    known = _FLASH is not None and _FLASH_BACK is not None
    return known and plain and not torch.is_autocast_enabled("cpu") and value.size(-1) == key.size(-1)


def _spans(groups: Sequence[GroupSizes]) -> Iterator[tuple[slice, slice, list[slice]]]:
    """Of each group the places of the prompt, of all its completions, and of each completion."""
    start = 0
    for prompt, completions in groups:
        ends = list(accumulate(completions, initial=start + prompt))
        rows = [slice(first, last) for first, last in pairwise(ends)]
        yield slice(start, start + prompt), slice(start + prompt, ends[-1]), rows
        start = ends[-1]


class _InParts(torch.autograd.Function):
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
        out_1NHD = query.new_empty(1, length, heads, width)
        sums_1NH = query.new_empty(1, length, heads, dtype=torch.promote_types(query.dtype, torch.float32))
        for prompt, written, rows in _spans(groups):
            for part in (prompt, *rows):
                seen = (states[:, :, part] for states in (query, key, value))
                found, its_sums = _FLASH(*seen, is_causal=True, scale=scaling)
                out_1NHD[:, part], sums_1NH[:, part] = found.transpose(1, 2), its_sums.transpose(1, 2)
            if rows:
                found, its_sums = _FLASH(query[:, :, written], key[:, :, prompt], value[:, :, prompt], scale=scaling)
                own_sums, its_sums = sums_1NH[:, written], its_sums.transpose(1, 2)
                share = torch.sigmoid(its_sums - own_sums).to(found.dtype)
                out_1NHD[:, written].lerp_(found.transpose(1, 2), share[..., None])
                sums_1NH[:, written] = torch.logaddexp(own_sums, its_sums)
        out, sums = out_1NHD.transpose(1, 2), sums_1NH.transpose(1, 2)
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
        for prompt, written, rows in _spans(ctx.groups):
            for part in (prompt, *rows):
                to_query[:, :, part], to_key[:, :, part], to_value[:, :, part] = back(part, part, causal=True)
            if rows:
                more_query, more_key, more_value = back(written, prompt, causal=False)
                to_query[:, :, written] += more_query
                to_key[:, :, prompt] += more_key
                to_value[:, :, prompt] += more_value
        return to_query, to_key, to_value, None, None


def _like(states_1HND: torch.Tensor) -> torch.Tensor:
    """Room for a gradient, heads behind places."""
    return states_1HND.new_empty(states_1HND.transpose(1, 2).shape).transpose(1, 2)
