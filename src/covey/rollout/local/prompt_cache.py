"""A KV cache in which the completions of a prompt share its keys and values, and the attention over it.

Attention over the prompt is batched over the group, attention over each completion's own tokens is separate, and both
share one softmax. So neither memory nor time grows with prompt length times completions ("bifurcated attention",
Athiwaratkun et al. 2024, arXiv:2403.08845). Keys are written in place rather than appended, and the last completion
takes the place of one that has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from covey.model.device import for_products, on_device
from covey.rollout.local.split_attention import Order, Part, split_attention

FIRST_LENGTH = 64
"""Initial capacity in tokens per completion; doubled whenever it is full."""


class NotSharedError(Exception):
    """Why this model's attention cannot be computed here; the caller logs it."""


@dataclass(slots=True)
class _Span:
    """What layers of one kind attend to in this step. Biases are None where all rows see the same tokens."""

    prompt_from: int
    completion_from: int
    prompt_bias: torch.Tensor | None = None
    """`[b, 1, L]`, added to the scores of the prompt's tokens."""
    completion_bias: torch.Tensor | None = None
    """`[b, 1, t]`, added to the scores of the completion's tokens."""


def windows_of(cache: DynamicCache) -> list[int | None]:
    """The sliding window of each layer, None for full attention.

    Raises:
        NotSharedError: a layer caches something else than keys and values.
    """
    windows: list[int | None] = []
    for layer in cache.layers:
        if type(layer) is DynamicSlidingWindowLayer:
            windows.append(int(layer.sliding_window))
        elif type(layer) is DynamicLayer:
            windows.append(None)
        else:
            raise NotSharedError(f"the model caches more than keys and values ({type(layer).__name__})")
    return windows


class SharedLayer(CacheLayerMixin):
    """Keys and values of one layer: of P prompts, right-aligned, and of b completions, left-aligned."""

    def __init__(self, window: int | None, owner: SharedPromptCache) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self.owner = owner
        self.checked = False
        self.prompts: list[torch.Tensor] = []  # keys and values, [P, H, L, D]
        self.completion_kv: list[torch.Tensor] = []  # keys and values, [b, H, t, D]
        self.active_prompts: list[torch.Tensor] = []  # views of those with rows in the batch
        self.active_completion_kv: list[torch.Tensor] = []  # views of those in the batch

    def admit(self, states: Sequence[torch.Tensor], widths: Sequence[int], rows: int) -> None:
        """Add prompts with keys and values `[P, H, L, D]`, and make room for this many rows in all."""
        states = [for_products(state) for state in states]
        length = states[0].shape[2]
        for state, width in zip(states[0], widths, strict=True):
            state[:, : max(length - width, 0)] = 0  # padding
        for state, width in zip(states[1], widths, strict=True):
            state[:, : max(length - width, 0)] = 0
        if not self.prompts:
            self.prompts = [state.contiguous() for state in states]
            self.completion_kv = [
                state.new_empty(rows, state.shape[1], FIRST_LENGTH, state.shape[3]) for state in states
            ]
            self.is_initialized = True
            return
        active = self.owner.active_prompts
        for place, state in enumerate(states):
            both = [self.prompts[place][:active], state]
            longest = max(part.shape[2] for part in both)
            both = [torch.nn.functional.pad(part, (0, 0, longest - part.shape[2], 0)) for part in both]
            self.prompts[place] = torch.cat(both)
        if rows > self.completion_kv[0].shape[0]:
            self.resize(rows, self.completion_kv[0].shape[2], 0)

    def resize(self, rows: int, columns: int, drop: int) -> None:
        """Change the capacity for completions, and drop the first `drop` columns."""
        active, used = self.owner.active_rows, self.owner.column
        for place, old in enumerate(self.completion_kv):
            new = old.new_empty(rows, old.shape[1], columns, old.shape[3])
            new[:active, :, : used - drop] = old[:active, :, drop:used]
            self.completion_kv[place] = new

    def update_views(self, prompts: int, rows: int) -> None:
        """Make the views of the prompts and rows that are in the batch."""
        self.active_prompts = [states[:prompts] for states in self.prompts]
        self.active_completion_kv = [states[:rows] for states in self.completion_kv]

    def move(self, tensors: list[torch.Tensor], into: list[int], out_of: list[int], columns: slice) -> None:
        for tensor in tensors:
            for new, old in zip(into, out_of, strict=True):
                tensor[new, :, columns] = tensor[old, :, columns]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values `[b, H, 1, D]` of the newest token of each row."""
        column = self.owner.column
        for states, state in zip(self.active_completion_kv, (key_states, value_states), strict=True):
            states.select(2, column).copy_(state.squeeze(2))
        return key_states, value_states

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing: `admit` initialises the layer."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Unused: the attention here makes its own masks."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """The most tokens that any row has."""
        return self.owner.longest

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class SharedPromptCache(Cache):
    """The cache of b completions of P prompts, with the same layout in all layers.

    Every forward writes one token per row into the same column. A row that entered later leaves earlier columns empty.
    """

    def __init__(self, windows: Sequence[int | None]) -> None:
        self.column = 0  # where the next token is written
        self.starts: list[int] = []  # the first column of each row
        self.prompt_of: list[int] = []  # the index of each row's prompt
        self.lengths: list[int] = []  # tokens of each prompt
        self._order: dict[int, Order] = {}  # by number of heads, see `_arrange`
        self._starts_b = self._lengths_b = torch.empty(0)  # each row's first column and tokens of its prompt
        self._ahead_b = torch.empty(0)  # each row's next position, less the column
        self._spans: dict[int | None, _Span] = {}
        super().__init__(layers=[SharedLayer(window, self) for window in windows])

    @property
    def active_rows(self) -> int:
        """Rows in the batch, b."""
        return len(self.starts)

    @property
    def active_prompts(self) -> int:
        """Prompts that have rows in the batch, P."""
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """The most tokens that any row has."""
        return max(
            (self.lengths[p] + self.column - s for p, s in zip(self.prompt_of, self.starts, strict=True)), default=0
        )

    @property
    def prompt_lengths_b(self) -> torch.Tensor:
        """Tokens of each row's prompt, on the device."""
        return self._lengths_b

    @property
    def completion_lengths_b(self) -> torch.Tensor:
        """Tokens of each row's completion that are in the cache, on the device."""
        return self.column - self._starts_b

    def positions_b1(self) -> torch.Tensor:
        """The position of each row's next token in its sequence, `[b, 1]`."""
        return (self._ahead_b + self.column)[:, None]

    def admit(self, prefilled: DynamicCache, lengths: Sequence[int], rows_each: Sequence[int]) -> None:
        """Add prompts, and their completions after the present rows.

        Args:
            prefilled: the cache after a forward over the prompts, padded on the left.
            lengths: tokens of each prompt.
            rows_each: completions of each prompt.
        """
        rows = self.active_rows + sum(rows_each)
        for new, layer in zip(prefilled.layers, self.layers, strict=True):
            layer.admit([new.keys, new.values], lengths, rows)
        for length, count in zip(lengths, rows_each, strict=True):
            self.prompt_of += [len(self.lengths)] * count
            self.starts += [self.column] * count
            self.lengths.append(length)
        self._arrange()

    def drop(self, ended: Sequence[int]) -> list[int]:
        """Remove rows; the last rows take their places.

        Returns:
            The former places of the remaining rows, in their new order.
        """
        order = self._close_gaps(
            ended, self.active_rows, [layer.completion_kv for layer in self.layers], slice(0, self.column)
        )
        self.starts = [self.starts[row] for row in order]
        self.prompt_of = [self.prompt_of[row] for row in order]
        if not order:
            self.column, self.lengths = 0, []
            return order
        used = set(self.prompt_of)
        idle = [place for place in range(self.active_prompts) if place not in used]
        if idle:
            prompts = [layer.prompts for layer in self.layers]
            left = self._close_gaps(idle, self.active_prompts, prompts, slice(None))
            self.lengths = [self.lengths[place] for place in left]
            new_place = {old: new for new, old in enumerate(left)}
            self.prompt_of = [new_place[place] for place in self.prompt_of]
        self._arrange()
        return order

    def _close_gaps(
        self, gaps: Sequence[int], count: int, tensors: list[list[torch.Tensor]], columns: slice
    ) -> list[int]:
        gone, left = set(gaps), count - len(gaps)
        into = [place for place in sorted(gone) if place < left]
        out_of = [place for place in range(left, count) if place not in gone]
        for layer, states in zip(self.layers, tensors, strict=True):
            layer.move(states, into, out_of, columns)
        order = list(range(left))
        for new, old in zip(into, out_of, strict=True):
            order[new] = old
        return order

    def _arrange(self) -> None:
        """Assign rows to the slots of their prompts.

        For H key heads, a row's queries are at `row * H + head` and its slot in the layout at
        `(prompt * H + head) * most + slot`: each prompt has as many slots as the largest group, some of them unused.
        """
        for layer in self.layers:
            layer.update_views(self.active_prompts, self.active_rows)
        device = self.layers[0].completion_kv[0].device
        lengths = [self.lengths[place] for place in self.prompt_of]
        self._starts_b, self._lengths_b = on_device([self.starts, lengths], device)
        self._ahead_b = self._lengths_b - self._starts_b
        rows_of: list[list[int]] = [[] for _ in self.lengths]
        slot_of = []
        for row, place in enumerate(self.prompt_of):
            slot_of.append(len(rows_of[place]))
            rows_of[place].append(row)
        most = max(map(len, rows_of))
        rows_PG = torch.tensor([rows + [0] * (most - len(rows)) for rows in rows_of])
        place_b1, slot_b1 = torch.tensor(self.prompt_of)[:, None], torch.tensor(slot_of)[:, None]
        self._order = {}
        for H in {layer.completion_kv[0].shape[1] for layer in self.layers}:
            head_H = torch.arange(H)
            query_PHG = rows_PG[:, None] * H + head_H[:, None]
            slot_bH = (place_b1 * H + head_H) * most + slot_b1
            sizes = [query_PHG.numel(), slot_bH.numel()]
            both = on_device(torch.cat([query_PHG.flatten(), slot_bH.flatten()]), device)
            self._order[H] = Order(*torch.split(both, sizes))

    def begin(self) -> None:
        """Make room for one more token per row, and compute what each kind of layer attends to."""
        room = self.layers[0].completion_kv[0].shape[2]
        if self.column == room:
            first = min(self.starts)
            drop = first if first * 2 >= room else 0
            for layer in self.layers:
                layer.resize(layer.completion_kv[0].shape[0], room if drop else room * 2, drop)
            self.starts = [start - drop for start in self.starts]
            self.column -= drop
            self._arrange()
        kinds = {layer.window: layer.prompts[0].shape[2] for layer in self.layers}
        self._spans = {window: self._span(window, width) for window, width in kinds.items()}

    def end(self) -> None:
        """Advance by the token that a forward has stored."""
        self.column += 1

    def _span(self, window: int | None, width: int) -> _Span:
        """What layers with this window and prompts of this width attend to."""
        first = min(self.starts)
        if max(self.starts) == first and min(self.lengths) == max(self.lengths):
            reach_all = min(self.lengths[0], width)
            if window is not None:
                reach_all = min(reach_all, max(window - 1 - (self.column - first), 0))
                first = max(first, self.column - window + 1)
            return _Span(width - reach_all, first)
        lengths = [self.lengths[place] for place in self.prompt_of]
        reach = [min(length, width) for length in lengths]
        if window is not None:
            since = [self.column - start for start in self.starts]
            reach = [min(n, max(window - 1 - t, 0)) for n, t in zip(reach, since, strict=True)]
            first = max(first, self.column - window + 1)
        max_reach = max(reach)
        found = _Span(width - max_reach, first)
        if min(reach) < max_reach or max(self.starts) > first:
            # The same once more from what lies on the device: copying it there in every step would be a wait.
            device = self._starts_b.device
            reach_b = self._lengths_b.clamp(max=width)
            if window is not None:
                reach_b = torch.minimum(reach_b, (window - 1 - self.column + self._starts_b).clamp(min=0))
            back_L = torch.arange(max_reach - 1, -1, -1, device=device)
            column_t = torch.arange(first, self.column + 1, device=device)
            found.prompt_bias = _hide(back_L >= reach_b[:, None])
            found.completion_bias = _hide(column_t < self._starts_b[:, None])
        return found

    def attend(self, layer: SharedLayer, query: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attention of one new token per row.

        Args:
            layer: of this cache.
            query: `[b, H·g, 1, D]`.
            scaling: of the scores.

        Returns:
            `[b, 1, H·g, D]`.
        """
        span = self._spans[layer.window]
        first, count = span.completion_from, self.column + 1 - span.completion_from
        completion_keys, completion_values = (states.narrow(2, first, count) for states in layer.active_completion_kv)
        prompt_keys, prompt_values = layer.active_prompts
        if span.prompt_from:
            prompt_keys, prompt_values = (states[:, :, span.prompt_from :] for states in layer.active_prompts)
        completions = Part(completion_keys, completion_values, span.completion_bias)
        prompts = Part(prompt_keys, prompt_values, span.prompt_bias)
        b, heads, _, D = query.shape
        H = completion_keys.shape[1]
        found_bHgD = split_attention(query.reshape(b, H, heads // H, D), scaling, prompts, completions, self._order[H])
        return found_bHgD.reshape(b, 1, heads, -1).to(query.dtype)


def _hide(hidden: torch.Tensor) -> torch.Tensor:
    """A mask to add to scores, with an axis for heads: minus infinity where hidden."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)[:, None]
