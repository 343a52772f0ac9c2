"""Attention over rows that share their prompt, so that a group's prompt is computed once.

A batch is laid out as one row that holds real tokens only: each prompt once, then the completions written for it, then
the next prompt. Everything in a language model but attention looks at one token at a time and does not mind. Attention
is told the layout: a prompt attends to itself, a completion to its prompt and to itself, and nothing else to anything.

`share_prompts` puts this behind transformers' registered attention functions. Calls that bring no layout pass through
untouched, and the layout travels among the arguments of the model's forward, so that it is there again when gradient
checkpointing computes a layer a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Literal

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from covey.model.attention_parts import in_parts, parts_apply

LAYOUT = "covey_layout"
"""The name under which a model's forward takes the layout and hands it to its attention."""

NO_MASK = (1, 1, 1, 1)
"""Shape of the attention mask that a packed row goes with. One of four axes is taken for ready and handed on as it is,
so that no model builds one of N×N for nothing, and attention can tell that the model has not made one of its own."""

UNDERSTOOD = frozenset(
    ("scaling", "dropout", "sliding_window", "position_ids", "cache_position", "use_cache", "output_attentions")
)
"""Arguments of an attention function that are followed, or change nothing: positions are in the queries and keys."""

CPU_BLOCK = 256
GPU_BLOCK = 1024
"""Queries at a time: keys that come after a block are left out of it, and masks stay small."""


@dataclass(frozen=True)
class Group:
    """One prompt and the completions that share it, as numbers of tokens."""

    prompt: int
    completions: tuple[int, ...]


@dataclass
class GroupLayout:
    """Where prompts and completions lie in a packed row of N tokens.

    The tokens of each group are its prompt, then its completions, in order and without a gap.
    """

    groups: tuple[Group, ...]
    how: Literal["parts", "one by one", "side by side"] | None = None
    """Whether prompts and completions attend in parts (see `covey.model.attention_parts`), whole completions one at a
    time (no padding), or padded side by side (few kernels, for a GPU). None takes what suits the device; parts are only
    taken where they apply."""
    calls: int = 0
    """Attention calls that have followed this layout."""
    problem: str | None = None
    """Why this layout is not followed, where an attention call found a reason."""
    masks: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict, repr=False)

    def within(self, window: int | None) -> bool:
        """Whether every token sees all before it in its row."""
        longest = max(group.prompt + max(group.completions, default=0) for group in self.groups)
        return window is None or window >= longest

    @property
    def sizes(self) -> list[int]:
        """Tokens of each prompt and each completion, in order."""
        return [size for group in self.groups for size in (group.prompt, *group.completions)]

    def mask(self, before: int, start: int, stop: int, first_key: int, window: int | None, like: Any) -> torch.Tensor:
        """What is added to the scores of the queries from `start` to `stop`, which come after `before` other keys.

        Zero where a query may look, minus infinity elsewhere. `like` gives the device and the number type.
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
    """Let the attention function that this model uses follow a layout, where a call brings one.

    Registers, under the same name, a function that hands every other call to the one that was there.
    """
    name = model.config._attn_implementation
    original = AttentionInterface()[name]
    if not hasattr(original, "follows_layout"):
        AttentionInterface.register(name, _following(original))


def reason_against(model: PreTrainedModel) -> str | None:
    """Why a model cannot compute a shared prompt once; None if nothing is known to stand in the way.

    It must mix tokens in nothing but attention of the usual kind, whose function is one of transformers' registered
    ones, and tell positions by rotation, which only differences of positions matter to.
    """
    config = model.config
    backbone = model.base_model
    kinds = set(getattr(config, "layer_types", None) or ())
    rope = getattr(config, "rope_parameters", None) or {}
    ropes = rope.values() if rope and all(isinstance(value, dict) for value in rope.values()) else [rope]
    name = config._attn_implementation
    if config.get_text_config() is not config:
        return "the model takes more than text"
    if backbone is model:
        return "the model's backbone and head are one"
    if not getattr(model, "_supports_attention_backend", False) or name not in AttentionInterface():
        return f"the attention of {type(model).__name__} ({name}) is not one of transformers' exchangeable functions"
    if getattr(config, "output_router_logits", False):
        return "the model's router has a loss over the whole batch"
    if other := kinds - {"full_attention", "sliding_attention"}:
        return f"the model has layers of the kind {', '.join(sorted(other))}"
    if getattr(model, "_is_stateful", False) or any(isinstance(part, torch.nn.Conv1d) for part in backbone.modules()):
        return "the model mixes tokens outside attention"
    if not any(part.endswith("rotary_emb") for part, _ in backbone.named_modules()):
        return "the model does not tell positions by rotation"
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
        query: `[1, heads, N, D]`.
        key: `[1, key heads, N, D]`; the key heads divide the heads.
        value: like `key`.
        layout: where prompts and completions lie among the N tokens.
        scaling: what the scores are multiplied by; None means `1/√D`.
        window: how many tokens, itself included, a token looks back at most; None means all.
        dropout: the share of attention weights to drop.

    Returns:
        `[1, heads, N, D]`.
    """
    if layout.how in (None, "parts") and not dropout and layout.within(window) and parts_apply(query, key, value):
        return in_parts(query, key, value, [(group.prompt, group.completions) for group in layout.groups], scaling)
    if query.device.type != "cpu" and (repeats := query.size(1) // key.size(1)) > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    attend = _Attend(layout, scaling, window, dropout)
    one_by_one = query.device.type == "cpu" if layout.how in (None, "parts") else layout.how == "one by one"
    sizes = layout.sizes
    parts = list(zip(*(torch.split(part, sizes, 2) for part in (query, key, value)), strict=True))
    out = []
    for group in layout.groups:
        (prompt, *rows), parts = parts[: 1 + len(group.completions)], parts[1 + len(group.completions) :]
        _, prompt_key, prompt_value = prompt
        out.append(attend(*prompt, before=0))
        if not one_by_one and len(rows) > 1:
            padded = (_side_by_side([row[i] for row in rows]) for i in range(3))
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
    """Causal attention of queries that come last among the keys, some queries at a time."""

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


def _side_by_side(rows: list[torch.Tensor]) -> torch.Tensor:
    """Rows `[1, heads, t, D]` of different lengths as one batch; what fills them up comes last, where none looks."""
    longest = max(row.size(2) for row in rows)
    return torch.cat([torch.nn.functional.pad(row, (0, 0, 0, longest - row.size(2))) for row in rows])


def _compute_dtype(like: torch.Tensor) -> torch.dtype:
    """The number type that attention will run in, so that no call converts the mask again."""
    kind = like.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype


def _following(original: Callable[..., Any]) -> Callable[..., Any]:
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
        layout.problem = layout.problem or _misfit(module, attention_mask, kwargs)
        scaling, window = kwargs.get("scaling"), kwargs.get("sliding_window")
        dropout = kwargs.get("dropout", 0.0)
        out = group_attention(query, key, value, layout, scaling=scaling, window=window, dropout=dropout)
        return out.transpose(1, 2).contiguous(), None

    attention.follows_layout = True  # type: ignore[attr-defined]
    return attention


def _misfit(module: Any, mask: torch.Tensor | None, arguments: dict[str, Any]) -> str | None:
    """What an attention call asks for that attention over groups does not do."""
    asked = sorted(name for name, value in arguments.items() if value is not None and name not in UNDERSTOOD)
    if asked:
        return f"the model's attention takes {', '.join(asked)}"
    if getattr(module, "sinks", None) is not None or not getattr(module, "is_causal", True):
        return "the model's attention is not plainly causal"
    if mask is None or mask.shape != NO_MASK:
        return "the model's attention has a mask of its own making"
    if not hasattr(module, "layer_idx") or not hasattr(module, "config"):
        return "the model's attention does not say which layer it is"
    kinds = getattr(module.config, "layer_types", None)
    masked = getattr(module.config, "sliding_window", None)  # what the mask, which is not built, would go by
    given = arguments.get("sliding_window")
    slides = kinds[module.layer_idx] == "sliding_attention" if kinds else masked and "sliding_window" not in arguments
    if (slides or given is not None) and given != masked:
        return "the model's attention does not say its sliding window"
    return None
