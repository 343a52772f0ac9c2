"""A key-value cache in which the completions of a prompt share its keys and values, and the attention that reads it.

Attention to the prompt is computed for all completions of the group together, attention to what each has written so far
for each alone, and both meet in one softmax. So neither memory nor time holds the prompt once per
completion ("bifurcated attention", Athiwaratkun et al. 2024, arXiv:2403.08845). Keys are written in place rather than
appended, and a completion that has ended gives up its place to the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from covey.rollout.two_parts import Order, Part, by_products

FIRST_LENGTH = 64
"""Tokens per completion that there is room for at first; doubled whenever they are used up."""


class NotSharedError(Exception):
    """Why this model's attention cannot be computed here; caught where it is said in the log."""


@dataclass(slots=True)
class _Reach:
    """What layers of one kind look at in this step. Biases are None where all rows see the same tokens."""

    prompt_from: int
    own_from: int
    prompt_bias: torch.Tensor | None = None
    """`[b, 1, L]`, added to the scores of the prompt's tokens."""
    own_bias: torch.Tensor | None = None
    """`[b, 1, t]`, added to the scores of the completion's tokens."""


def windows_of(cache: DynamicCache) -> list[int | None]:
    """The sliding window of each layer, None where a layer sees everything.

    Raises:
        NotSharedError: a layer keeps something else than keys and values.
    """
    windows: list[int | None] = []
    for layer in cache.layers:
        if type(layer) is DynamicSlidingWindowLayer:
            windows.append(int(layer.sliding_window))
        elif type(layer) is DynamicLayer:
            windows.append(None)
        else:
            raise NotSharedError(f"the model keeps more than keys and values ({type(layer).__name__})")
    return windows


class SharedLayer(CacheLayerMixin):
    """Keys and values of one layer: of P prompts, flush right, and of b completions, flush left."""

    def __init__(self, window: int | None, owner: SharedPromptCache) -> None:
        super().__init__()
        self.window = window
        self.is_sliding = window is not None
        self.owner = owner
        self.vetted = False
        self.prompts: list[torch.Tensor] = []  # keys and values, [P, H, L, d]
        self.own: list[torch.Tensor] = []  # keys and values, [rows, H, columns, d]
        self.live_prompts: list[torch.Tensor] = []  # the first ones of these, those that have rows in the batch
        self.live_own: list[torch.Tensor] = []  # the first ones, those in the batch

    def admit(self, states: Sequence[torch.Tensor], widths: Sequence[int], rows: int) -> None:
        """Add prompts whose keys and values are `[p, H, l, d]`, and make room for this many rows in all."""
        states = [_for_products(state) for state in states]
        length = states[0].shape[2]
        for state, width in zip(states[0], widths, strict=True):
            state[:, : max(length - width, 0)] = 0  # padding
        for state, width in zip(states[1], widths, strict=True):
            state[:, : max(length - width, 0)] = 0
        if not self.prompts:
            self.prompts = [state.contiguous() for state in states]
            self.own = [state.new_empty(rows, state.shape[1], FIRST_LENGTH, state.shape[3]) for state in states]
            self.is_initialized = True
            return
        live = self.owner.live_prompts
        for place, state in enumerate(states):
            both = [self.prompts[place][:live], state]
            longest = max(part.shape[2] for part in both)
            both = [torch.nn.functional.pad(part, (0, 0, longest - part.shape[2], 0)) for part in both]
            self.prompts[place] = torch.cat(both)
        if rows > self.own[0].shape[0]:
            self.resize(rows, self.own[0].shape[2], 0)

    def resize(self, rows: int, columns: int, drop: int) -> None:
        """Change the room for completions, without the first `drop` columns."""
        live, used = self.owner.live_rows, self.owner.column
        for place, old in enumerate(self.own):
            new = old.new_empty(rows, old.shape[1], columns, old.shape[3])
            new[:live, :, : used - drop] = old[:live, :, drop:used]
            self.own[place] = new

    def take_stock(self, prompts: int, rows: int) -> None:
        """Note how many prompts and rows are in the batch, so that the views of them are made once."""
        self.live_prompts = [states[:prompts] for states in self.prompts]
        self.live_own = [states[:rows] for states in self.own]

    def move(self, tensors: list[torch.Tensor], into: list[int], out_of: list[int], columns: slice) -> None:
        for tensor in tensors:
            for new, old in zip(into, out_of, strict=True):
                tensor[new, :, columns] = tensor[old, :, columns]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values `[b, H, 1, d]` of the newest token of each row."""
        column = self.owner.column
        for own, state in zip(self.live_own, (key_states, value_states), strict=True):
            own.select(2, column).copy_(state.squeeze(2))
        return key_states, value_states

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: prompts come first, through `admit`."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Not asked for: the attention here makes its own masks."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """The most tokens that any row has."""
        return self.owner.longest

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class SharedPromptCache(Cache):
    """The cache of b completions of P prompts; all layers alike.

    Every forward writes one token per row into the same column. A row that entered later has nothing in the columns
    before.
    """

    def __init__(self, windows: Sequence[int | None]) -> None:
        self.column = 0  # where the next token is written
        self.starts: list[int] = []  # the first column of each row
        self.prompt_of: list[int] = []  # the place of each row's prompt
        self.lengths: list[int] = []  # tokens of each prompt
        self._order: dict[int, Order] = {}  # by number of heads, see `_arrange`
        self._ahead_b1 = torch.empty(0)  # each row's next position, less the column
        self._reach: dict[int | None, _Reach] = {}
        super().__init__(layers=[SharedLayer(window, self) for window in windows])

    @property
    def live_rows(self) -> int:
        """Rows in the batch, b."""
        return len(self.starts)

    @property
    def live_prompts(self) -> int:
        """Prompts that have rows in the batch, P."""
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """The most tokens that any row has."""
        return max(
            (self.lengths[p] + self.column - s for p, s in zip(self.prompt_of, self.starts, strict=True)), default=0
        )

    def positions_b1(self) -> torch.Tensor:
        """The position of each row's next token in its sequence, `[b, 1]`."""
        return self._ahead_b1 + self.column

    def admit(self, prefilled: DynamicCache, lengths: Sequence[int], rows_each: Sequence[int]) -> None:
        """Add prompts, and their completions after the rows that are there.

        Args:
            prefilled: the cache after a forward over the prompts, padded on the left.
            lengths: tokens of each prompt.
            rows_each: completions of each prompt.
        """
        rows = self.live_rows + sum(rows_each)
        for new, layer in zip(prefilled.layers, self.layers, strict=True):
            layer.admit([new.keys, new.values], lengths, rows)
        for length, count in zip(lengths, rows_each, strict=True):
            self.prompt_of += [len(self.lengths)] * count
            self.starts += [self.column] * count
            self.lengths.append(length)
        self._arrange()

    def drop(self, ended: Sequence[int]) -> list[int]:
        """Take rows out; the last rows take their places.

        Returns:
            The former places of the rows that are left, in their new order.
        """
        order = self._close_gaps(ended, self.live_rows, [layer.own for layer in self.layers], slice(0, self.column))
        self.starts = [self.starts[row] for row in order]
        self.prompt_of = [self.prompt_of[row] for row in order]
        if not order:
            self.column, self.lengths = 0, []
            return order
        used = set(self.prompt_of)
        idle = [place for place in range(self.live_prompts) if place not in used]
        if idle:
            prompts = [layer.prompts for layer in self.layers]
            left = self._close_gaps(idle, self.live_prompts, prompts, slice(None))
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
        """Lay out which rows ask each prompt, and where in that layout each row finds its answer.

        For H heads of keys, a row's queries are at `row * H + head` and its slot in the layout at
        `(prompt * H + head) * most + slot`: each prompt has as many slots as the largest group, some of them unused.
        """
        for layer in self.layers:
            layer.take_stock(self.live_prompts, self.live_rows)
        device = self.layers[0].own[0].device
        ahead = [self.lengths[place] - start for place, start in zip(self.prompt_of, self.starts, strict=True)]
        self._ahead_b1 = torch.tensor(ahead, device=device)[:, None]
        rows_of: list[list[int]] = [[] for _ in self.lengths]
        slot_of = []
        for row, place in enumerate(self.prompt_of):
            slot_of.append(len(rows_of[place]))
            rows_of[place].append(row)
        most = max(map(len, rows_of))
        rows_PS = torch.tensor([rows + [0] * (most - len(rows)) for rows in rows_of])
        place_b1, slot_b1 = torch.tensor(self.prompt_of)[:, None], torch.tensor(slot_of)[:, None]
        self._order = {}
        for H in {layer.own[0].shape[1] for layer in self.layers}:
            head_H = torch.arange(H)
            asks_PHS = rows_PS[:, None] * H + head_H[:, None]
            answer_bH = (place_b1 * H + head_H) * most + slot_b1
            self._order[H] = Order(asks_PHS.flatten().to(device), answer_bH.flatten().to(device))

    def begin(self) -> None:
        """Make room for one more token per row, and find out what each kind of layer sees of the past."""
        room = self.layers[0].own[0].shape[2]
        if self.column == room:
            first = min(self.starts)
            drop = first if first * 2 >= room else 0
            for layer in self.layers:
                layer.resize(layer.own[0].shape[0], room if drop else room * 2, drop)
            self.starts = [start - drop for start in self.starts]
            self.column -= drop
            self._arrange()
        kinds = {layer.window: layer.prompts[0].shape[2] for layer in self.layers}
        self._reach = {window: self._look(window, width) for window, width in kinds.items()}

    def end(self) -> None:
        """Count the token that a forward has written."""
        self.column += 1

    def _look(self, window: int | None, width: int) -> _Reach:
        """What layers with this window, whose prompts are this wide, see of the prompts and of the rows' own tokens."""
        first = min(self.starts)
        if max(self.starts) == first and min(self.lengths) == max(self.lengths):
            reach_all = min(self.lengths[0], width)
            if window is not None:
                reach_all = min(reach_all, max(window - 1 - (self.column - first), 0))
                first = max(first, self.column - window + 1)
            return _Reach(width - reach_all, first)
        lengths = [self.lengths[place] for place in self.prompt_of]
        reach = [min(length, width) for length in lengths]
        if window is not None:
            since = [self.column - start for start in self.starts]
            reach = [min(n, max(window - 1 - t, 0)) for n, t in zip(reach, since, strict=True)]
            first = max(first, self.column - window + 1)
        furthest = max(reach)
        starts = [max(start, first) for start in self.starts]
        found = _Reach(width - furthest, first)
        if min(reach) < furthest or max(starts) > first:
            device = self.layers[0].own[0].device
            back_L = torch.arange(furthest - 1, -1, -1, device=device)
            column_t = torch.arange(first, self.column + 1, device=device)
            found.prompt_bias = _hide(back_L >= torch.tensor(reach, device=device)[:, None])
            found.own_bias = _hide(column_t < torch.tensor(starts, device=device)[:, None])
        return found

    def attend(self, layer: SharedLayer, query: torch.Tensor, scaling: float) -> torch.Tensor:
        """Attention of one new token per row.

        Args:
            layer: of this cache.
            query: `[b, heads, 1, d]`.
            scaling: of the scores.

        Returns:
            `[b, 1, heads, d]`.
        """
        reach = self._reach[layer.window]
        first, count = reach.own_from, self.column + 1 - reach.own_from
        own_keys, own_values = (own.narrow(2, first, count) for own in layer.live_own)
        prompt_keys, prompt_values = layer.live_prompts
        if reach.prompt_from:
            prompt_keys, prompt_values = (states[:, :, reach.prompt_from :] for states in layer.live_prompts)
        own, prompts = Part(own_keys, own_values, reach.own_bias), Part(prompt_keys, prompt_values, reach.prompt_bias)
        b, heads, _, d = query.shape
        H = own_keys.shape[1]
        found_bHgd = by_products(query.reshape(b, H, heads // H, d), scaling, prompts, own, self._order[H])
        return found_bHgd.reshape(b, 1, heads, -1).to(query.dtype)


def _hide(hidden: torch.Tensor) -> torch.Tensor:
    """What is added to scores, with an axis for heads: minus infinity where it is hidden."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)[:, None]


def _for_products(state: torch.Tensor) -> torch.Tensor:
    """In the number type that products are computed in."""
    kind = state.device.type
    return state.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else state
