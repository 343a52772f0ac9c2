"""Attention over shared prompts without masks: by a fused kernel on a CPU, by PyTorch's flash kernel on NVIDIA GPUs.

A completion attends to its prompt and to itself. The two are computed separately, the prompt for all completions of the
group at once, and merged by their log-sum-exps ("bifurcated attention", Athiwaratkun et al. 2024, arXiv:2403.08845,
here with gradients). The backward pass needs no merging: the kernel recomputes a token's attention weights from its
output and log-sum-exp, so with those of the merged attention it gives the gradients of either part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from covey.errors import one_line
from covey.log_once import log_once
from covey.model.device import for_products, on_device

logger = logging.getLogger(__name__)

_CPU_FORWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_CPU_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)

GroupSizes = tuple[int, tuple[int, ...]]
"""Tokens of a prompt, and of each of its completions."""


def split_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: Sequence[GroupSizes], scaling: float | None
) -> torch.Tensor:
    """`group_attention` of N tokens, of each group its prompt, then its completions, by PyTorch's kernel for CPUs."""
    factor = query.size(-1) ** -0.5 if scaling is None else scaling
    out: torch.Tensor = _SplitAttention.apply(query, key, value, tuple(groups), factor)  # type: ignore[no-untyped-call]
    return out


def split_supported(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether `split_attention` can be used: on a CPU and in full precision, since each part is rounded."""
    tensors = (query, key, value)
    plain = all(one.device.type == "cpu" and one.dtype in (torch.float32, torch.float64) for one in tensors)
    known = _CPU_FORWARD is not None and _CPU_BACKWARD is not None
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
        assert _CPU_FORWARD is not None
        _, heads, length, width = query.shape
        # The kernels keep heads behind places.
        out_by_token = query.new_empty(1, length, heads, width)
        sums_by_token = query.new_empty(1, length, heads, dtype=torch.promote_types(query.dtype, torch.float32))
        for prompt, completions, rows in _spans(groups):
            for part in (prompt, *rows):
                own = (tensor[:, :, part] for tensor in (query, key, value))
                found, part_sums = _CPU_FORWARD(*own, is_causal=True, scale=scaling)
                out_by_token[:, part], sums_by_token[:, part] = found.transpose(1, 2), part_sums.transpose(1, 2)
            if rows:
                states = (query[:, :, completions], key[:, :, prompt], value[:, :, prompt])
                found, part_sums = _CPU_FORWARD(*states, scale=scaling)
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
        assert _CPU_BACKWARD is not None
        query, key, value, out, sums = ctx.saved_tensors

        def back(asking: slice, seen: slice, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            states = (query[:, :, asking], key[:, :, seen], value[:, :, seen])
            of_whole = (out[:, :, asking], sums[:, :, asking])
            found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _CPU_BACKWARD(
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


_CUDA_FORWARD = getattr(torch.ops.aten, "_flash_attention_forward", None)
_CUDA_BACKWARD = getattr(torch.ops.aten, "_flash_attention_backward", None)

WIDEST_HEAD = 256
"""Largest head dimension of the flash kernel; it must be a multiple of 8."""

ALLOWED = 3.0
"""How many times the error of the path with masks the flash kernel's may be, both in 16 bits and against float32."""

Attention = Callable[..., torch.Tensor]
"""Of queries, keys and values."""

_checked: dict[tuple[Any, ...], bool] = {}
"""Whether the flash kernel's numbers were right, by device, dtype and shape of the heads."""


@dataclass(frozen=True)
class Sequences:
    """Where the sequences of a packed row begin; made once and used by every layer."""

    starts: torch.Tensor
    """First token of each prompt and completion, and the end of the last one."""
    longest: int
    asking_starts: torch.Tensor
    """The same of each group's completions together, among `completion_index`."""
    most_asking: int
    asked_starts: torch.Tensor
    """The same of the prompts that have completions, among `prompt_index`."""
    most_asked: int
    completion_index: torch.Tensor
    """Place of every completion token in the row."""
    prompt_index: torch.Tensor
    """Place of every token of a prompt that has completions."""

    @classmethod
    def of(cls, groups: Sequence[GroupSizes], device: torch.device) -> Sequences:
        """The sequences of these groups."""
        sizes = [size for prompt, completions in groups for size in (prompt, *completions)]
        shared = [(prompt, sum(completions)) for prompt, completions in groups if completions]
        asking, asked = [asking for _, asking in shared], [prompt for prompt, _ in shared]
        places = torch.arange(sum(sizes))
        kinds = torch.tensor(
            [kind for prompt, completions in groups for kind in (0 if completions else 2, *[1] * len(completions))]
        ).repeat_interleave(torch.tensor(sizes))
        starts = [list(accumulate(each, initial=0)) for each in (sizes, asking, asked)]
        parts = [*map(torch.tensor, starts), places[kinds == 1], places[kinds == 0]]
        together = on_device(torch.cat(parts), device)
        all_S, asking_S, asked_S, completion_index, prompt_index = torch.split(together, [len(part) for part in parts])
        return cls(
            starts=all_S.int(),
            longest=max(sizes),
            asking_starts=asking_S.int(),
            most_asking=max(asking, default=0),
            asked_starts=asked_S.int(),
            most_asked=max(asked, default=0),
            completion_index=completion_index,
            prompt_index=prompt_index,
        )


def flash_refusal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> str | None:
    """Why the flash kernel cannot be used for these states, or None; anywhere but on NVIDIA's GPUs it never can."""
    if query.device.type != "cuda" or torch.version.hip is not None or _CUDA_FORWARD is None or _CUDA_BACKWARD is None:
        return "PyTorch's flash kernel is for NVIDIA GPUs"
    width, dtype = query.size(-1), for_products(query[..., :0]).dtype
    if dtype not in (torch.float16, torch.bfloat16):
        return f"PyTorch's flash kernel computes in 16 bits, not in {dtype}"
    if torch.cuda.get_device_capability(query.device) < (8, 0):
        return "PyTorch's flash kernel needs a GPU of compute capability 8 or more"
    if width > WIDEST_HEAD or width % 8 or value.size(-1) != width:
        return f"PyTorch's flash kernel takes no attention heads of width {width}"
    return None


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sequences: Sequences, scaling: float | None
) -> torch.Tensor:
    """Attention in which every completion sees its own prompt and itself, causally.

    Args:
        query: `[1, H·g, N, D]`, cast to the dtype of autocast, as keys and values.
        key: `[1, H, N, D]`.
        value: like `key`.
        sequences: of the N tokens.
        scaling: factor of the scores; None means `1/√D`.

    Returns:
        `[1, H·g, N, D]`.
    """
    states = [for_products(states)[0].transpose(0, 1) for states in (query, key, value)]
    with torch.autocast(query.device.type, enabled=False):
        out: torch.Tensor = _TwoCalls.apply(*states, sequences, scaling)  # type: ignore[no-untyped-call]
    return out.transpose(0, 1)[None]


def _kind(query: torch.Tensor, key: torch.Tensor) -> tuple[Any, ...]:
    return str(query.device), for_products(query[..., :0]).dtype, query.size(1), key.size(1), query.size(-1)


def flash_verdict(query: torch.Tensor, key: torch.Tensor) -> bool | None:
    """What `flash_is_right` found for such heads on this device; None before their first use."""
    return _checked.get(_kind(query, key))


def flash_is_right(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, flash: Attention, dense: Attention
) -> bool:
    """Whether the flash kernel's output and gradients are those of the path with masks; checked at the first use.

    That a CUDA backward pass accepts the output and sums of the whole is nowhere promised. Both paths are compared
    with the one with masks in float32.

    Args:
        query: of the first batch, as are keys and values.
        flash: the path by the kernel.
        dense: the path with masks.
    """
    kind = _kind(query, key)
    if kind not in _checked:
        states = [for_products(one.detach()) for one in (query, key, value)]
        try:
            with torch.autocast(query.device.type, enabled=False):
                expected = _with_gradients(dense, [one.float() for one in states])
                errors = [
                    torch.stack([_distance(a, b) for a, b in zip(_with_gradients(path, states), expected, strict=True)])
                    for path in (flash, dense)
                ]
        except RuntimeError as error:  # a PyTorch or a GPU without this kernel
            log_once(logger, "Attention over shared prompts uses masks: %s", one_line(error), shown=False)
            _checked[kind] = False
            return False
        _checked[kind] = bool((errors[0] <= ALLOWED * errors[1] + 1e-3).all())
        if not _checked[kind]:
            text = (
                "Attention over shared prompts uses masks: PyTorch's flash kernel gives other numbers (%s against %s)."
            )
            log_once(logger, text, errors[0].tolist(), errors[1].tolist(), shown=False)
    return _checked[kind]


def _with_gradients(path: Attention, states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Output and gradients. The hooks of gradient checkpointing around this would compute the layer once more."""
    with torch.enable_grad(), saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        leaves = [one.clone().requires_grad_() for one in states]
        out = path(*leaves)
        weights = torch.linspace(-1, 1, out.size(-1), device=out.device).to(out)
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]


def _distance(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    distance: torch.Tensor = (found.float() - expected).norm() / expected.norm().clamp(min=1e-6)
    return distance


class _TwoCalls(torch.autograd.Function):
    """Takes and returns `[N, heads, D]`.

    One call takes every prompt and every completion as a sequence of its own, causally. The other takes all completions
    of a group as one sequence of queries over their prompt. `torch.nn.attention.varlen` does not serve: its backward
    pass ignores the gradient of the log-sum-exp.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sequences: Sequences,
        scaling: float | None,
    ) -> torch.Tensor:
        assert _CUDA_FORWARD is not None
        own = (sequences.starts, sequences.starts, sequences.longest, sequences.longest)
        out: torch.Tensor
        out, sums, random, unused, _ = _CUDA_FORWARD(query, key, value, *own, 0.0, True, False, scale=scaling)
        asking = sequences.completion_index
        if len(asking):
            states = (query[asking], key[sequences.prompt_index], value[sequences.prompt_index])
            found, part_sums, *_ = _CUDA_FORWARD(*states, *_shared(sequences), 0.0, False, False, scale=scaling)
            own_sums = sums[:, asking]
            share = torch.sigmoid(part_sums - own_sums).t()[..., None]
            joined = torch.lerp(out[asking].to(share), found.to(share), share)
            out.index_copy_(0, asking, joined.to(out))
            sums.index_copy_(1, asking, torch.logaddexp(own_sums, part_sums))
        ctx.save_for_backward(query, key, value, out, sums, random, unused)
        ctx.sequences, ctx.scaling = sequences, scaling
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        assert _CUDA_BACKWARD is not None
        query, key, value, out, sums, *random = ctx.saved_tensors
        sequences, grad = ctx.sequences, grad.contiguous()
        own = (sequences.starts, sequences.starts, sequences.longest, sequences.longest)
        states = (grad, query, key, value, out, sums)
        to_query, to_key, to_value = _CUDA_BACKWARD(*states, *own, 0.0, True, *random, scale=ctx.scaling)
        asking, asked = sequences.completion_index, sequences.prompt_index
        if len(asking):
            states = (grad[asking], query[asking], key[asked], value[asked], out[asking], sums[:, asking].contiguous())
            more = _CUDA_BACKWARD(*states, *_shared(sequences), 0.0, False, *random, scale=ctx.scaling)
            to_query.index_add_(0, asking, more[0])
            to_key.index_add_(0, asked, more[1])
            to_value.index_add_(0, asked, more[2])
        return to_query, to_key, to_value, None, None


def _shared(sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    return sequences.asking_starts, sequences.asked_starts, sequences.most_asking, sequences.most_asked
