"""Turns of conversations: rows whose keys and values are kept, the forwards, and the batch of rows that go on."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

from covey.log_once import log_once
from covey.model.device import device_memory, on_device
from covey.rollout.local.cache import CACHE, FIRST_LENGTH, EndedRow, SharedLayer, SharedPromptCache

logger = logging.getLogger(__name__)

KEPT_SHARE = 0.25
"""Most of the device's memory that keys and values take between turns."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The keys and values of a row."""

    cache: SharedPromptCache
    row: EndedRow


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A row of the last turn."""

    ids: list[int]
    """Tokens of its prompt and its completion."""
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """What a row of the last turn holds of a prompt."""

    common: int = 0
    """Tokens that the prompt begins with."""
    kept: Kept | None = None
    """None where the prompt must be read from its start."""
    known: int = 0
    """Tokens of the prompt whose keys and values are kept: fewer than it has."""


@dataclass(slots=True)
class Turn:
    """What a call of `sample` takes from the last turn, and leaves for the next one."""

    matches: list[Match]
    """One for each prompt; emptied as soon as their keys and values have been copied."""
    rows: list[TurnRow] = field(default_factory=list)
    """Of this turn, once it is over."""


class Conversation:
    """The rows of the last turn of a batch of conversations.

    Only the last turn is kept: a row that sits out a turn is read again afterwards. What a turn leaves is what it held
    while it sampled: each prompt once, and each row's own tokens. A turn that would leave more than `KEPT_SHARE` of the
    device's memory leaves nothing.
    """

    def __init__(self) -> None:
        self._rows: list[TurnRow] = []  # sorted by their tokens
        self._version: int | None = None

    def find(self, prompts: Sequence[Sequence[int]], version: int | None) -> list[Match]:
        """What the rows of the last turn hold of these prompts; the rows themselves are released.

        Args:
            prompts: token ids.
            version: of the weights.
        """
        rows, self._rows = self._rows, []
        return [_longest_match(rows, list(ids), version == self._version) for ids in prompts]

    def keep(self, rows: Sequence[TurnRow], version: int | None, device: torch.device) -> None:
        """Keep the rows of a turn for the next one.

        Args:
            rows: all of them.
            version: of the weights.
            device: that holds their keys and values.
        """
        caches = {id(row.kept.cache): row.kept.cache for row in rows if row.kept is not None}
        size = sum(cache.nbytes for cache in caches.values())
        self._rows, self._version = sorted(rows, key=lambda row: row.ids), version
        if size > KEPT_SHARE * device_memory(device):
            log_once(
                logger,
                "The keys and values of a turn take %.1f GiB, more than %.0f%% of the device's memory: they are not "
                "kept, and the next turn reads its conversations from the start.",
                size / 2**30,
                100 * KEPT_SHARE,
                key="not kept",
                shown=False,
            )
            self.release()

    def release(self) -> None:
        """Free all keys and values; the rows' tokens stay known."""
        self._rows = [TurnRow(row.ids) for row in self._rows]


def _longest_match(rows: list[TurnRow], ids: list[int], same_weights: bool) -> Match:
    """With rows in the order of their tokens, the longest common beginning is that with a neighbour."""
    place = bisect_left(rows, ids, key=lambda row: row.ids)
    neighbours = [(_common(row.ids, ids), row) for row in rows[max(place - 1, 0) : place + 1]]
    common, row = max(neighbours, key=lambda found: found[0], default=(0, None))
    if row is None or row.kept is None or not same_weights:
        return Match(common)
    prompt = row.kept.row.prompt_length
    known = min(common, len(ids) - 1, prompt + row.kept.row.stored)
    return Match(common, row.kept, known) if known >= prompt else Match(common)


def _common(left: list[int], right: list[int]) -> int:
    """How many tokens two sequences begin with alike."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(place for place in range(length) if left[place] != right[place])


def prefill(model: Any, prompts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, DynamicCache]:
    """Compute prompts with the model's own attention.

    Returns:
        The logits of the token after each prompt, `[P, V]`, and the filled cache.
    """
    longest = max(map(len, prompts))
    ids_PL = on_device([[pad] * (longest - len(ids)) + list(ids) for ids in prompts], model.device)
    cache = DynamicCache(config=model.config)
    masks: dict[str, torch.Tensor] = {}
    if min(map(len, prompts)) < longest:
        mask_PL = on_device([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts], model.device)
        masks = {"attention_mask": mask_PL, "position_ids": (mask_PL.cumsum(-1) - 1).clamp(min=0)}
    out = model(input_ids=ids_PL, past_key_values=cache, use_cache=True, logits_to_keep=1, **masks)
    return out.logits[:, -1], cache


def step(model: Any, cache: SharedPromptCache, tokens_bR: torch.Tensor) -> torch.Tensor:
    """Append R tokens to every row, with shared attention, and return the logits of the next, `[b, V]`."""
    cache.begin(tokens_bR.shape[1])
    out = model(
        input_ids=tokens_bR,
        position_ids=cache.positions(),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
        **{CACHE: cache},
    )
    cache.end()
    logits_bV: torch.Tensor = out.logits[:, -1]
    return logits_bV


READ_SCORES = 2**22
"""Most attention scores of a query head in one forward: new tokens of all rows times the tokens that they attend to."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that goes on."""

    number: int
    """Of its prompt in the call."""
    kept: Kept
    stored: int
    """Tokens of its own whose keys and values are kept."""
    own: Sequence[int]
    """All tokens of its own: what follows the prompt of the first turn."""

    @property
    def new(self) -> int:
        """Tokens to be read."""
        return len(self.own) - self.stored


@dataclass(frozen=True, slots=True)
class _Source:
    """What is taken from the cache of an earlier turn."""

    cache: SharedPromptCache
    prompts: torch.Tensor
    """Places of the prompts."""
    into_b: torch.Tensor
    """The rows' places in the new batch."""
    from_b1: torch.Tensor
    """Their places in the earlier cache."""
    columns_bt: torch.Tensor
    """For each column of the new cache the one that it comes from."""
    empty_bt: torch.Tensor
    """Columns that nothing comes from."""


class NextTurn:
    """Rows that go on. Their own tokens, those of earlier turns included, end in the same column of a new cache; the
    prompts of the first turn stay shared."""

    def __init__(self, prompts: Sequence[Sequence[int]], matches: Sequence[Match], device: torch.device) -> None:
        """
        Args:
            prompts: token ids.
            matches: of each prompt, at least one with kept tokens; the others do not go on here.
            device: of the model.
        """
        rows = [
            _Row(number, match.kept, match.known - length, ids[length:])
            for number, (ids, match) in enumerate(zip(prompts, matches, strict=True))
            if match.kept is not None
            for length in (match.kept.row.prompt_length,)
        ]
        rows.sort(key=lambda row: -row.new)
        self.rows = [row.number for row in rows]
        """Numbers of the prompts in the order of the batch: first those with most new tokens."""
        width, columns = rows[0].new, max(len(row.own) for row in rows)
        self._first_new = [width - row.new for row in rows]
        self._done, self._width = 0, width
        self._starts = [columns - len(row.own) for row in rows]
        # Shorter rows read some of their kept tokens again, and padding before their start, to which nothing attends.
        ids = [[0] * (width - len(row.own)) + list(row.own[-width:]) for row in rows]
        self._ids_bR = on_device(ids, device)
        self.cache, self._prompt_of = _restored(rows, self._starts, columns, device)
        self.cache.column = columns - width

    def read(self, model: Any) -> torch.Tensor | None:
        """Read further new tokens, in one forward with shared attention.

        A row with many new tokens begins before the others, so that its batch is not as long for all: at most twice
        the rows that have a token to read from the start on take part.

        Returns:
            The logits of the token after each row's last one, `[b, V]`; None while there is more to read.
        """
        begun = bisect_right(self._first_new, self._done)
        end = self._first_new[2 * begun] if 2 * begun < len(self.rows) else self._width
        attended = max(self.cache.lengths) + self.cache.column + end - self._done
        end = min(end, self._done + max(READ_SCORES // (2 * begun * attended), 1))
        rows = bisect_left(self._first_new, end)
        self.cache.hold(self._starts[:rows], self._prompt_of[:rows])
        logits_bV = step(model, self.cache, self._ids_bR[:rows, self._done : end])
        self._done = end
        return logits_bV if end == self._width else None


def _restored(
    rows: Sequence[_Row], starts: Sequence[int], columns: int, device: torch.device
) -> tuple[SharedPromptCache, list[int]]:
    """A cache with the kept keys and values of these rows, and the place of each row's prompt in it."""
    places: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(id(row.kept.cache), []).append(place)
    lengths: list[int] = []
    prompt_of = [0] * len(rows)
    sources = []
    for same in places.values():
        new_place: dict[int, int] = {}
        for place in same:
            ended = rows[place].kept.row
            if ended.prompt not in new_place:
                new_place[ended.prompt] = len(lengths)
                lengths.append(ended.prompt_length)
            prompt_of[place] = new_place[ended.prompt]
        numbers = [(at, e.place, e.start, rows[at].stored, starts[at]) for at in same for e in (rows[at].kept.row,)]
        into_b, from_b, start_b, stored_b, new_start_b = on_device(numbers, device).unbind(1)
        offset_bt = torch.arange(columns, device=device) - new_start_b[:, None]
        empty_bt = (offset_bt < 0) | (offset_bt >= stored_b[:, None])
        columns_bt = (offset_bt + start_b[:, None]).masked_fill_(empty_bt, 0)
        prompt_places, cache = on_device(list(new_place), device), rows[same[0]].kept.cache
        sources.append(_Source(cache, prompt_places, into_b, from_b[:, None], columns_bt, empty_bt))
    cache = SharedPromptCache([layer.window for layer in sources[0].cache.layers], keeps=True)
    for number, layer in enumerate(cache.layers):
        _fill(layer, [(source, source.cache.layers[number]) for source in sources], len(rows), columns)
    cache.lengths = lengths
    return cache, prompt_of


def _fill(layer: SharedLayer, sources: Sequence[tuple[_Source, SharedLayer]], rows: int, columns: int) -> None:
    """Copy the prompts and the rows' own keys and values into a layer, with room for more."""
    for kind in range(2):
        prompts = [old.prompts[kind].index_select(0, source.prompts) for source, old in sources]
        longest = max(states.shape[2] for states in prompts)
        padded = [torch.nn.functional.pad(states, (0, 0, longest - states.shape[2], 0)) for states in prompts]
        layer.prompts.append(torch.cat(padded) if len(padded) > 1 else padded[0])
        _, H, _, D = prompts[0].shape
        own = prompts[0].new_empty(rows, H, columns + FIRST_LENGTH, D)
        for source, old in sources:
            states = old.completion_kv[kind][source.from_b1, :, source.columns_bt].transpose(1, 2)
            own[source.into_b, :, :columns] = states.masked_fill_(source.empty_bt[:, None, :, None], 0)
        layer.completion_kv.append(own)
    layer.is_initialized = True
