"""Attention over rows that share their prompt, so that a group's prompt is computed once.

A batch is packed into one sequence without padding: each prompt once, then its completions, then the next prompt.
Everything in a language model but attention works per token. Attention gets the layout: a prompt attends to itself, a
completion to its prompt and to itself.

`share_prompts` adds this to transformers' registered attention functions. Calls without a layout are unchanged. The
layout is an argument of the model's forward, so that it is present when gradient checkpointing recomputes a layer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import accumulate
from typing import Any, Literal

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from covey.log_once import log_once
from covey.model.attention_kernels import (
    Sequences,
    flash_attention,
    flash_is_right,
    flash_refusal,
    flash_verdict,
    split_attention,
    split_supported,
)
from covey.model.device import is_spread

logger = logging.getLogger(__name__)

LAYOUT = "covey_layout"
"""The argument by which a model's forward passes the layout to its attention."""

NO_MASK = (1, 1, 1, 1)
"""Shape of the attention mask that a packed row is passed with. A mask with four axes is passed on as it is, so that no
model needlessly builds an N×N mask, and attention can tell that the model has not made one of its own."""

SUPPORTED = frozenset(
    ("scaling", "dropout", "sliding_window", "position_ids", "cache_position", "use_cache", "output_attentions")
)
"""Arguments of an attention function that are supported or have no effect: positions are in queries and keys."""

CHECKED = 2048
"""Tokens of the first batch that the flash kernel is checked with: the path with masks takes much memory."""

CPU_BLOCK = 256
GPU_BLOCK = 1024
"""Queries per block: later keys are left out, and masks stay small."""


@dataclass(frozen=True)
class PackedGroup:
    """One prompt and the completions that share it, as numbers of tokens."""

    prompt: int
    completions: tuple[int, ...]


@dataclass
class GroupLayout:
    """The positions of prompts and completions in a packed row of N tokens.

    The tokens of each group are its prompt, then its completions, in order and without gaps.
    """

    groups: tuple[PackedGroup, ...]
    how: Literal["split", "flash", "sequential", "padded"] | None = None
    """`split` and `flash`: attention over prompt and completion separately, on a CPU and on an NVIDIA GPU (see
    `covey.model.attention_kernels`), where supported; `sequential`: one completion at a time, without padding;
    `padded`: a batch of padded completions, with few kernels, for a GPU. None chooses by device."""
    calls: int = 0
    """Attention calls that have used this layout."""
    problem: str | None = None
    """Why an attention call could not use this layout, if one could not."""
    masks: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict, repr=False)
    _sequences: dict[torch.device, Sequences] = field(default_factory=dict, repr=False)

    def within(self, window: int | None) -> bool:
        """Whether the window covers all earlier tokens of every sequence."""
        longest = max(group.prompt + max(group.completions, default=0) for group in self.groups)
        return window is None or window >= longest

    @property
    def sizes(self) -> list[int]:
        """Tokens of each prompt and each completion, in order."""
        return [size for group in self.groups for size in (group.prompt, *group.completions)]

    def sequences_on(self, device: torch.device) -> Sequences:
        """The sequences, for the flash kernel."""
        if device not in self._sequences:
            self._sequences[device] = Sequences.of([(group.prompt, group.completions) for group in self.groups], device)
        return self._sequences[device]

    def mask(self, before: int, start: int, stop: int, first_key: int, window: int | None, like: Any) -> torch.Tensor:
        """The mask to add to the scores of the queries from `start` to `stop`, which come after `before` other keys.

        Zero where a query may attend, else minus infinity. `like` has the device and dtype.
        """
        key = (before, start, stop, first_key, window, like.device, dtype := _compute_dtype(like))
        if key not in self.masks:
            queries = torch.arange(before + start, before + stop, device=like.device)[:, None]
            keys = torch.arange(first_key, before + stop, device=like.device)[None, :]
            hidden = keys > queries
            if window is not None:
                hidden |= queries - keys >= window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=like.device)
            self.masks[key] = mask.masked_fill_(hidden, -torch.inf)
        return self.masks[key]


def share_prompts(model: PreTrainedModel) -> None:
    """Make the attention function of this model use a layout, if a call has one.

    Registers, under the same name, a function that passes all other calls on to the original.
    """
    name = model.config._attn_implementation
    original = AttentionInterface()[name]
    if not hasattr(original, "uses_layout"):
        AttentionInterface.register(name, _with_layout(original))


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why a model cannot share prompts; None if no reason is known.

    It must mix tokens in causal attention only, by one of transformers' registered functions, and have rotary position
    embeddings, which depend on differences of positions only.
    """
    config = model.config
    backbone = model.base_model
    kinds = set(getattr(config, "layer_types", None) or ())
    rope = getattr(config, "rope_parameters", None) or {}
    ropes = rope.values() if rope and all(isinstance(value, dict) for value in rope.values()) else [rope]
    name = config._attn_implementation
    if is_spread(model):
        return "the model's layers are on several devices"
    if config.get_text_config() is not config:
        return "the model is multimodal"
    if backbone is model:
        return "the model has no backbone apart from its head"
    if not getattr(model, "_supports_attention_backend", False) or name not in AttentionInterface():
        return f"the attention of {type(model).__name__} ({name}) is not one of transformers' registered functions"
    if getattr(config, "output_router_logits", False):
        return "the model's router has a loss over the whole batch"
    if other := kinds - {"full_attention", "sliding_attention"}:
        return f"the model has layers of the kind {', '.join(sorted(other))}"
    if getattr(model, "_is_stateful", False) or any(isinstance(part, torch.nn.Conv1d) for part in backbone.modules()):
        return "the model mixes tokens outside attention"
    if not any(part.endswith("rotary_emb") for part, _ in backbone.named_modules()):
        return "the model has no rotary position embeddings"
    if other := {str(one.get("rope_type")) for one in ropes} & {"dynamic", "longrope"}:
        return f"the model's rotary embedding ({', '.join(other)}) changes with the length of the batch"
    return None


def group_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: GroupLayout,
    *,
    scaling: float | None = None,
    window: int | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Attention in which every completion sees its own prompt and itself, causally.

    Args:
        query: `[1, H·g, N, D]`.
        key: `[1, H, N, D]`.
        value: like `key`.
        layout: the prompts and completions among the N tokens.
        scaling: factor of the scores; None means `1/√D`.
        window: of sliding-window attention, in tokens, the query included; None for full attention.
        dropout: of the attention weights.

    Returns:
        `[1, H·g, N, D]`.
    """
    if layout.how in (None, "split") and not dropout and layout.within(window) and split_supported(query, key, value):
        return split_attention(
            query, key, value, [(group.prompt, group.completions) for group in layout.groups], scaling
        )
    if layout.how in (None, "flash") and _takes_flash(query, key, value, layout, scaling, window, dropout):
        return flash_attention(query, key, value, layout.sequences_on(query.device), scaling)
    return _masked_attention(query, key, value, layout, scaling=scaling, window=window, dropout=dropout)


def _takes_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: GroupLayout,
    scaling: float | None,
    window: int | None,
    dropout: float,
) -> bool:
    """Whether the flash kernel is used; on a GPU the reason why not is logged once."""
    reason = flash_refusal(query, key, value)
    if dropout or not layout.within(window):
        reason = "PyTorch's flash kernel is used without dropout, and without windows shorter than the row"
    if reason is not None and query.device.type == "cpu":
        return False
    if reason is not None:
        log_once(logger, "Attention over shared prompts uses masks: %s.", reason, shown=False)
        return False
    known = flash_verdict(query, key)
    if known is not None:
        return known
    # The first groups of a row, about CHECKED tokens of it.
    taken, length = list[PackedGroup](), 0
    for group in layout.groups:
        taken.append(PackedGroup(group.prompt, group.completions[: _prefix(group, CHECKED - length)]))
        length += group.prompt + sum(taken[-1].completions)
        if length >= CHECKED or len(taken[-1].completions) < len(group.completions):
            break
    padded = GroupLayout(tuple(taken), how="padded")
    flash = partial(flash_attention, sequences=padded.sequences_on(query.device), scaling=scaling)
    dense = partial(_masked_attention, layout=padded, scaling=scaling)
    first = slice(length)
    return flash_is_right(query[:, :, first], key[:, :, first], value[:, :, first], flash, dense)


def _prefix(group: PackedGroup, room: int) -> int:
    """How many of a group's completions, at least one, fit the room with its prompt."""
    ends = accumulate(group.completions, initial=group.prompt)
    return max(1, sum(end <= room for end in ends) - 1)


def _masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: GroupLayout,
    *,
    scaling: float | None = None,
    window: int | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """`group_attention` by the usual kernels, with masks."""
    if query.device.type != "cpu" and (repeats := query.size(1) // key.size(1)) > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    attend = _Attend(layout, scaling, window, dropout)
    sequential = query.device.type == "cpu" if layout.how in (None, "split", "flash") else layout.how == "sequential"
    sizes = layout.sizes
    parts = list(zip(*(torch.split(part, sizes, 2) for part in (query, key, value)), strict=True))
    out = []
    for group in layout.groups:
        (prompt, *rows), parts = parts[: 1 + len(group.completions)], parts[1 + len(group.completions) :]
        _, prompt_key, prompt_value = prompt
        out.append(attend(*prompt, before=0))
        if not sequential and len(rows) > 1:
            padded = (_pad_rows([row[i] for row in rows]) for i in range(3))
            rows_query, rows_key, rows_value = padded
            rows_key = torch.cat([prompt_key.expand(len(rows), -1, -1, -1), rows_key], 2)
            rows_value = torch.cat([prompt_value.expand(len(rows), -1, -1, -1), rows_value], 2)
            rows_out = attend(rows_query, rows_key, rows_value, before=group.prompt)
            out += [rows_out[i : i + 1, :, :size] for i, size in enumerate(group.completions)]
            continue
        for row_query, row_key, row_value in rows:
            row_key, row_value = torch.cat([prompt_key, row_key], 2), torch.cat([prompt_value, row_value], 2)
            out.append(attend(row_query, row_key, row_value, before=group.prompt))
    return torch.cat(out, 2)


@dataclass(frozen=True)
class _Attend:
    """Causal attention of queries that come last among the keys, in blocks of queries."""

    layout: GroupLayout
    scaling: float | None
    window: int | None
    dropout: float

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, before: int) -> torch.Tensor:
        length = query.size(2)
        attend: Callable[..., torch.Tensor] = partial(
            scaled_dot_product_attention,
            dropout_p=self.dropout,
            scale=self.scaling,
            enable_gqa=query.size(1) != key.size(1),
        )
        window = self.window if self.window is not None and self.window < before + length else None
        if before == 0 and window is None:
            return attend(query, key, value, is_causal=True)
        block = CPU_BLOCK if query.device.type == "cpu" else GPU_BLOCK
        out = []
        for start in range(0, length, block):
            stop = min(start + block, length)
            first_key = 0 if window is None else max(0, before + start - window + 1)
            mask = self.layout.mask(before, start, stop, first_key, window, query)
            seen = slice(first_key, before + stop)
            out.append(attend(query[:, :, start:stop], key[:, :, seen], value[:, :, seen], attn_mask=mask))
        return out[0] if len(out) == 1 else torch.cat(out, 2)


def _pad_rows(rows: list[torch.Tensor]) -> torch.Tensor:
    """Rows `[1, heads, T, D]` of different lengths as one batch, padded on the right, where no query attends."""
    longest = max(row.size(2) for row in rows)
    return torch.cat([torch.nn.functional.pad(row, (0, 0, 0, longest - row.size(2))) for row in rows])


def _compute_dtype(like: torch.Tensor) -> torch.dtype:
    """The dtype that attention will run in, so that no call converts the mask again."""
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype


def _with_layout(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> Any:
        layout: GroupLayout | None = kwargs.pop(LAYOUT, None)
        if layout is None:
            return original(module, query, key, value, attention_mask, **kwargs)
        layout.calls += 1
        layout.problem = layout.problem or _unsupported_call(module, attention_mask, kwargs)
        scaling, window = kwargs.get("scaling"), kwargs.get("sliding_window")
        dropout = kwargs.get("dropout", 0.0)
        out = group_attention(query, key, value, layout, scaling=scaling, window=window, dropout=dropout)
        return out.transpose(1, 2).contiguous(), None

    attention.uses_layout = True  # type: ignore[attr-defined]
    return attention


def _unsupported_call(module: Any, mask: torch.Tensor | None, arguments: dict[str, Any]) -> str | None:
    """Why group attention cannot compute an attention call, or None."""
    unknown = sorted(name for name, value in arguments.items() if value is not None and name not in SUPPORTED)
    if unknown:
        return f"the model's attention takes {', '.join(unknown)}"
    if getattr(module, "sinks", None) is not None or not getattr(module, "is_causal", True):
        return "the model's attention is not plain causal attention"
    if mask is None or mask.shape != NO_MASK:
        return "the model's attention makes its own mask"
    if not hasattr(module, "layer_idx") or not hasattr(module, "config"):
        return "the model's attention modules have no layer_idx"
    kinds = getattr(module.config, "layer_types", None)
    masked = getattr(module.config, "sliding_window", None)  # of the mask, which is not built
    window = arguments.get("sliding_window")
    slides = kinds[module.layer_idx] == "sliding_attention" if kinds else masked and "sliding_window" not in arguments
    if (slides or window is not None) and window != masked:
        return "the model's attention is called without its sliding window"
    return None
