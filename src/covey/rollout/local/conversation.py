"""What is kept of the rows of a turn, and which rows of the next turn go on from it."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from covey.log_once import log_once
from covey.model.device import device_memory
from covey.rollout.local.prompt_cache import EndedRow, SharedPromptCache

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
