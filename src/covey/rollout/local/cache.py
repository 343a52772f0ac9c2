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
from transformers import AttentionInterface, Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from covey.model.device import base_model, for_products, on_device


@dataclass(frozen=True, slots=True)
class Order:
    """How rows map to a layout with G slots for each of P prompts."""

    slots: torch.Tensor
    """For each slot and key head, in the order prompt, head, slot: the row and head in it."""
    back: torch.Tensor
    """For each row and key head, its slot in that layout."""


@dataclass(frozen=True, slots=True)
class Part:
    """Keys and values, and the mask over them."""

    keys: torch.Tensor
    """`[P, H, L, D]` of prompts, `[b, H, t, D]` of completions."""
    values: torch.Tensor
    bias: torch.Tensor | None
    """Added to scores: `[b, R, L]` or `[b, R, t]`, zero or minus infinity; None where nothing is masked."""


def split_attention(
    query_bHgD: torch.Tensor, scaling: float, prompts: Part, completions: Part, order: Order
) -> torch.Tensor:
    """Products with either part, and one softmax over both.

    Plain products: with few queries for each key, torch's fused attention is not faster on a CPU.

    Args:
        query_bHgD: queries, grouped by key head; with R new tokens, those of a query head one after another.
        scaling: of the scores.
        prompts: the prompts; L may be 0.
        completions: the rows' own tokens.
        order: which rows belong to which prompt.

    Returns:
        `[b, H, g, D]`.
    """
    b, H, g, D = query_bHgD.shape
    keys, values, prompt_keys, prompt_values = (
        states.flatten(0, 1) for states in (completions.keys, completions.values, prompts.keys, prompts.values)
    )
    L = prompt_keys.shape[1]
    scaled = (query_bHgD * scaling).reshape(b * H, g, D).to(keys.dtype)
    scores = _product(scaled, keys.transpose(1, 2))
    bias = completions.bias
    if L:
        grouped = scaled.index_select(0, order.slots).view(len(prompt_keys), -1, D)
        to_prompt = _product(grouped, prompt_keys.transpose(1, 2)).view(-1, g, L)
        scores = torch.cat([to_prompt.index_select(0, order.back), scores], dim=-1)
        if completions.bias is not None and prompts.bias is not None:
            bias = torch.cat([prompts.bias, completions.bias], dim=-1)
    if bias is not None:
        scores.view(b, -1, *bias.shape[1:]).add_(bias[:, None])
    shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    found = _product(shares[..., L:], values)
    if L:
        grouped = shares[..., :L].index_select(0, order.slots).view(len(prompt_keys), -1, L)
        from_prompt = _product(grouped, prompt_values).view(-1, g, found.shape[-1])
        found += from_prompt.index_select(0, order.back)
    return found.view(b, H, g, -1)


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The batched product; of 16-bit numbers on CUDA in float32, as it is accumulated.

    Rounded scores, and rounded sums of two parts, would put the sampler further from the scorer than `generate` is.
    """
    left, right = for_products(left), for_products(right)
    if left.device.type != "cuda" or left.dtype == torch.float32 or torch.version.hip is not None:
        return torch.bmm(left, right)
    with torch.autocast("cuda", enabled=False):
        return torch.bmm(left, right, out_dtype=torch.float32)


@dataclass(slots=True)
class Columns:
    """Where rows have their tokens, in a cache of completions, and in which columns the new ones are."""

    column: int
    """Where the first new token of every row is written."""
    count: int
    """New tokens of each row in this forward, R."""
    starts: Sequence[int]
    """The first column of each row."""
    lengths: Sequence[int]
    """Tokens of each row's prompt."""
    starts_b: torch.Tensor
    """The same on the device, as copying them there in every step would be a wait."""
    lengths_b: torch.Tensor


@dataclass(slots=True)
class Visible:
    """What layers of one kind attend to in a forward. Biases are None where all rows see the same tokens."""

    prompt_from: int
    completion_from: int
    prompt_bias: torch.Tensor | None = None
    """`[b, R, L]`, added to the scores of the prompt's tokens."""
    completion_bias: torch.Tensor | None = None
    """`[b, R, t]`, added to the scores of the completion's tokens."""


def visible(rows: Columns, window: int | None, width: int) -> Visible:
    """What layers attend to with this sliding window, None for full attention, and prompts of this width."""
    first = min(rows.starts)
    one_by_one = rows.count == 1
    if one_by_one and max(rows.starts) == first and min(rows.lengths) == max(rows.lengths):
        reach_all = min(rows.lengths[0], width)
        if window is not None:
            reach_all = min(reach_all, max(window - 1 - (rows.column - first), 0))
            first = max(first, rows.column - window + 1)
        return Visible(width - reach_all, first)
    reach = [min(length, width) for length in rows.lengths]
    if window is not None:
        since = [rows.column - start for start in rows.starts]
        reach = [min(n, max(window - 1 - t, 0)) for n, t in zip(reach, since, strict=True)]
        first = max(first, rows.column - window + 1)
    max_reach = max(reach)
    found = Visible(width - max_reach, first)
    if not one_by_one or min(reach) < max_reach or max(rows.starts) > first:
        _hide_from_rows(found, rows, window, width)
    return found


def _hide_from_rows(found: Visible, rows: Columns, window: int | None, width: int) -> None:
    """Set the biases. Before its start a row has padding, which attends to the prompt, and to which nothing does."""
    device = rows.starts_b.device
    reach_b1 = rows.lengths_b.clamp(max=width)[:, None]
    back_L = torch.arange(width - found.prompt_from - 1, -1, -1, device=device)
    column_t = torch.arange(found.completion_from, rows.column + rows.count, device=device)
    hidden_bRt = (column_t < rows.starts_b[:, None])[:, None]
    if rows.count == 1:
        if window is not None:
            reach_b1 = torch.minimum(reach_b1, (window - 1 - rows.column + rows.starts_b).clamp(min=0)[:, None])
    else:
        new_R1 = torch.arange(rows.column, rows.column + rows.count, device=device)[:, None]
        hidden_bRt = hidden_bRt | (column_t > new_R1)
        if window is not None:
            hidden_bRt |= column_t <= new_R1 - window
            since_bR = new_R1.squeeze(1) - rows.starts_b[:, None]
            reach_b1 = torch.minimum(reach_b1, (window - 1 - since_bR).clamp(min=0))
    hidden_bRL = (back_L >= reach_b1[..., None]).expand(-1, rows.count, -1)
    found.prompt_bias, found.completion_bias = _bias(hidden_bRL), _bias(hidden_bRt)


def _bias(hidden: torch.Tensor) -> torch.Tensor:
    """A mask to add to scores: minus infinity where hidden."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)


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


ATTENTION = "covey_shared_prompt"
"""The name of `attend` among transformers' attention functions."""

CACHE = "covey_cache"
"""The argument of a model's forward, passed on to attention, that holds the cache."""

SUPPORTED = frozenset(
    {"position_ids", "cache_position", "use_cache", "output_attentions", "output_router_logits", "is_causal"}
)
"""Further arguments of attention that have no effect: positions are in the queries, and the cache has the masks."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers' layers call; keys and values are in the cache already. Raises a
    `NotSharedError` if the model's attention does something that is not supported here."""
    cache = kwargs.pop(CACHE, None)
    if cache is None:
        raise NotSharedError("the model does not pass further arguments on to its attention")
    layer = cache.layers[module.layer_idx]
    if not layer.checked:
        window = kwargs.pop("sliding_window", layer.window)
        unknown = sorted(name for name, value in kwargs.items() if name not in SUPPORTED and value is not None)
        if unknown:
            raise NotSharedError(f"the model's attention takes {', '.join(unknown)}")
        if window != layer.window:
            raise NotSharedError(f"a layer attends over {window} tokens and caches {layer.window}")
        if attention_mask is not None or query.shape[2] != layer.owner.count:
            raise NotSharedError("the model makes an attention mask of its own")
        layer.checked = True
    return cache.attend(layer, query, query.shape[-1] ** -0.5 if scaling is None else scaling), None


class SharedAttention:
    """Lets a model's layers call `attend` during generation; on exit, its own attention is restored."""

    def __init__(self, model: Any) -> None:
        self._model = base_model(model)
        self._own: str = self._model.config._attn_implementation
        self._shared = False

    def share(self, shared: bool) -> None:
        """Use the shared attention, or the model's own; switching walks the whole model, so only on a change."""
        if shared != self._shared:
            self._model.set_attn_implementation(ATTENTION if shared else self._own)
            self._shared = shared

    def __enter__(self) -> SharedAttention:
        return self

    def __exit__(self, *_: object) -> None:
        self.share(False)


AttentionInterface.register(ATTENTION, attend)
