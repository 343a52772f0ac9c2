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
from covey.rollout.local.visible_tokens import Columns, Visible, visible

FIRST_LENGTH = 64
"""Initial capacity in tokens per completion; doubled whenever it is full."""


class NotSharedError(Exception):
    """Why this model's attention cannot be computed here; the caller logs it."""


@dataclass(slots=True)
class EndedRow:
    """A row that has left the batch of a cache that keeps such rows."""

    place: int
    """Its row among the completions."""
    prompt: int
    """The place of its prompt."""
    start: int
    """Its first column."""
    stored: int
    """Its tokens in the cache, without those of the prompt."""
    prompt_length: int


def windows_of(cache: DynamicCache) -> list[int | None]:
    """The sliding window of each layer, None for full attention. Raises a `NotSharedError` if a layer caches something
    else than keys and values."""
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
        for state in self.completion_kv:  # hidden from the new rows, but it must be finite
            state[self.owner.active_rows : rows, :, : self.owner.column] = 0

    def resize(self, rows: int, columns: int, drop: int) -> None:
        """Change the capacity for completions, and drop the first `drop` columns."""
        used = self.owner.column
        present = self.completion_kv[0].shape[0] if self.owner.keeps else self.owner.active_rows
        for place, old in enumerate(self.completion_kv):
            new = old.new_empty(rows, old.shape[1], columns, old.shape[3])
            new[:present, :, : used - drop] = old[:present, :, drop:used]
            self.completion_kv[place] = new

    def update_views(self, prompts: int, rows: int) -> None:
        """Make the views of the prompts and rows that are in the batch."""
        self.active_prompts = [states[:prompts] for states in self.prompts]
        self.active_completion_kv = [states[:rows] for states in self.completion_kv]

    def move(self, tensors: list[torch.Tensor], into: list[int], out_of: list[int], columns: slice) -> None:
        """Move rows; those in whose place they come take theirs if the cache keeps them."""
        for tensor in tensors:
            for new, old in zip(into, out_of, strict=True):
                replaced = tensor[new, :, columns].clone() if self.owner.keeps else None
                tensor[new, :, columns] = tensor[old, :, columns]
                if replaced is not None:
                    tensor[old, :, columns] = replaced

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values `[b, H, R, D]` of the new tokens of each row."""
        column, count = self.owner.column, self.owner.count
        for states, state in zip(self.active_completion_kv, (key_states, value_states), strict=True):
            states.narrow(2, column, count).copy_(state)
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

    Every forward writes one token per row into the same column, or several tokens into the same columns. A row that
    entered later, or has fewer tokens, leaves earlier columns empty.

    Args:
        windows: of the layers; see `windows_of`.
        keeps: whether rows that have left the batch stay, with their prompts, behind those in the batch.
    """

    def __init__(self, windows: Sequence[int | None], *, keeps: bool = False) -> None:
        self.keeps = keeps
        self.ended: list[EndedRow] = []  # if it keeps them
        self.column = 0  # where the next token is written
        self.count = 1  # new tokens of each row in this forward, R
        self.starts: list[int] = []  # the first column of each row
        self.prompt_of: list[int] = []  # the index of each row's prompt
        self.lengths: list[int] = []  # tokens of each prompt
        self._row_prompts: list[int] = []  # tokens of each row's prompt
        self._order: dict[int, Order] = {}  # by number of heads, see `_arrange`
        self._starts_b = self._lengths_b = torch.empty(0)  # each row's first column and tokens of its prompt
        self._ahead_b = torch.empty(0)  # each row's next position, less the column
        self._visible: dict[int | None, Visible] = {}
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
    def nbytes(self) -> int:
        """Memory of keys and values."""
        return sum(states.nbytes for layer in self.layers for states in (*layer.prompts, *layer.completion_kv))

    @property
    def longest(self) -> int:
        """The most tokens that any row has."""
        return max(
            (self.lengths[p] + self.column - s for p, s in zip(self.prompt_of, self.starts, strict=True)), default=0
        )

    @property
    def row_lengths_b(self) -> torch.Tensor:
        """Tokens of each row that are in the cache, those of its prompt included, on the device."""
        return self._ahead_b + self.column

    def positions(self) -> torch.Tensor:
        """The position of each row's new tokens in its sequence, `[b, R]`; 0 for padding."""
        first_b1 = self.row_lengths_b[:, None]
        if self.count == 1:
            return first_b1
        return (first_b1 + torch.arange(self.count, device=first_b1.device)).clamp(min=0)

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

    def hold(self, starts: Sequence[int], prompt_of: Sequence[int]) -> None:
        """Let the batch have these rows, whose keys and values are in the cache.

        Args:
            starts: the first column of each row.
            prompt_of: the place of each row's prompt.
        """
        self.starts, self.prompt_of = list(starts), list(prompt_of)
        self._arrange()

    def drop(self, ended: Sequence[int]) -> list[int]:
        """Remove rows; the last rows take their places.

        Returns:
            The former places of all rows in their new order: first of the remaining rows, then of the ended ones.
        """
        order = self._close_gaps(
            ended, self.active_rows, [layer.completion_kv for layer in self.layers], slice(0, self.column)
        )
        left = len(order) - len(ended)
        if self.keeps:
            self.ended += [self._ended_row(place, old) for place, old in enumerate(order[left:], start=left)]
        self.starts = [self.starts[row] for row in order[:left]]
        self.prompt_of = [self.prompt_of[row] for row in order[:left]]
        if not left:
            self.column, self.lengths = 0, []
            return order
        used = set(self.prompt_of)
        idle = [place for place in range(self.active_prompts) if place not in used]
        if idle:
            prompts = [layer.prompts for layer in self.layers]
            moved = self._close_gaps(idle, self.active_prompts, prompts, slice(None))
            new_place = {old: new for new, old in enumerate(moved)}
            self.lengths = [self.lengths[place] for place in moved[: len(moved) - len(idle)]]
            self.prompt_of = [new_place[place] for place in self.prompt_of]
            for row in self.ended:
                row.prompt = new_place.get(row.prompt, row.prompt)
        self._arrange()
        return order

    def _ended_row(self, place: int, before: int) -> EndedRow:
        """The row that was at a place before, and has left the batch."""
        start, prompt = self.starts[before], self.prompt_of[before]
        return EndedRow(place, prompt, start, self.column - start, self.lengths[prompt])

    def _close_gaps(
        self, gaps: Sequence[int], count: int, tensors: list[list[torch.Tensor]], columns: slice
    ) -> list[int]:
        gone, left = set(gaps), count - len(gaps)
        into = [place for place in sorted(gone) if place < left]
        out_of = [place for place in range(left, count) if place not in gone]
        for layer, states in zip(self.layers, tensors, strict=True):
            layer.move(states, into, out_of, columns)
        order = list(range(count))
        for new, old in zip(into, out_of, strict=True):
            order[new], order[old] = old, new
        return order

    def _arrange(self) -> None:
        """Assign rows to the slots of their prompts.

        For H key heads, a row's queries are at `row * H + head` and its slot in the layout at
        `(prompt * H + head) * most + slot`: each prompt has as many slots as the largest group, some of them unused.
        """
        for layer in self.layers:
            layer.update_views(self.active_prompts, self.active_rows)
        device = self.layers[0].completion_kv[0].device
        self._row_prompts = [self.lengths[place] for place in self.prompt_of]
        self._starts_b, self._lengths_b = on_device([self.starts, self._row_prompts], device)
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

    def begin(self, count: int = 1) -> None:
        """Make room for new tokens of each row, and compute what each kind of layer attends to."""
        self.count = count
        room = self.layers[0].completion_kv[0].shape[2]
        if self.column == room:
            first = min(self.starts)
            drop = first if first * 2 >= room and not self.keeps else 0
            for layer in self.layers:
                layer.resize(layer.completion_kv[0].shape[0], room if drop else room * 2, drop)
            self.starts = [start - drop for start in self.starts]
            self.column -= drop
            self._arrange()
        kinds = {layer.window: layer.prompts[0].shape[2] for layer in self.layers}
        rows = Columns(self.column, count, self.starts, self._row_prompts, self._starts_b, self._lengths_b)
        self._visible = {window: visible(rows, window, width) for window, width in kinds.items()}

    def end(self) -> None:
        """Advance by the tokens that a forward has stored."""
        self.column += self.count

    def attend(self, layer: SharedLayer, query: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attention of the new tokens of each row.

        Args:
            layer: of this cache.
            query: `[b, H·g, R, D]`.
            scaling: of the scores.

        Returns:
            `[b, R, H·g, D]`.
        """
        span = self._visible[layer.window]
        first, count = span.completion_from, self.column + self.count - span.completion_from
        completion_keys, completion_values = (states.narrow(2, first, count) for states in layer.active_completion_kv)
        prompt_keys, prompt_values = layer.active_prompts
        if span.prompt_from:
            prompt_keys, prompt_values = (states[:, :, span.prompt_from :] for states in layer.active_prompts)
        completions = Part(completion_keys, completion_values, span.completion_bias)
        prompts = Part(prompt_keys, prompt_values, span.prompt_bias)
        b, heads, R, D = query.shape
        H = completion_keys.shape[1]
        # A head's new tokens are like so many heads more: each is one query.
        grouped_bHgD = query.reshape(b, H, heads // H * R, D)
        found_bHgD = split_attention(grouped_bHgD, scaling, prompts, completions, self._order[H])
        return found_bHgD.view(b, heads, R, -1).transpose(1, 2).to(query.dtype)
