"""The tokens that could be sampled in each place of each completion, kept in main memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FLUSH_EVERY = 16
"""Steps after which supports are moved to main memory, for which the host waits for a GPU."""

MOST_WAITING = 2**24
"""Most tokens of supports on the device, which are moved earlier when there are more."""

FIRST_LENGTH = 64
"""Initial capacity in places per completion; doubled whenever it is full."""


class Supports:
    """Supports of rows, in a buffer `[B, T, C]` that grows with the longest completion and the largest support."""

    def __init__(self, rows: int) -> None:
        self._kept_BTC = torch.empty(rows, 0, 0, dtype=torch.int32)
        self._waiting = list[tuple[Sequence[int], Sequence[int], torch.Tensor]]()
        self._size = 0

    def add(self, rows: Sequence[int], places: Sequence[int], support_bC: torch.Tensor) -> None:
        """Add the supports of a step.

        Args:
            places: tokens of their completions so far.
            support_bC: token ids, likeliest first, then -1.
        """
        self._waiting.append((rows, places, support_bC))
        self._size += support_bC.numel()
        if self._size > MOST_WAITING:
            self.flush()

    def flush(self, steps: int = 1) -> None:
        """Move what has been added in at least so many steps to main memory, less the columns that no row needs."""
        if len(self._waiting) < steps:
            return
        rows = [row for some, _, _ in self._waiting for row in some]
        places = [place for _, some, _ in self._waiting for place in some]
        all_NC = torch.cat([support_bC for _, _, support_bC in self._waiting])
        self._waiting, self._size = [], 0
        used = int((all_NC >= 0).any(0).sum())
        self._grow(max(places) + 1, used)
        self._kept_BTC[torch.tensor(rows), torch.tensor(places), :used] = all_NC[:, :used].cpu()

    def _grow(self, length: int, candidates: int) -> None:
        rows, T, C = self._kept_BTC.shape
        if length <= T and candidates <= C:
            return
        longer = T if length <= T else max(length, 2 * T, FIRST_LENGTH)
        larger = C if candidates <= C else max(candidates, C + C // 4)
        grown_BTC = torch.full((rows, longer, larger), -1, dtype=torch.int32)
        grown_BTC[:, :T, :C] = self._kept_BTC
        self._kept_BTC = grown_BTC

    def read(self, row: int, length: int) -> torch.Tensor | None:
        """The supports of this many places of a row, `[T, C]`, as narrow as they are; None if there are none at all."""
        self.flush()
        if not self._kept_BTC.numel():
            return None
        found_TC = self._kept_BTC[row, :length]
        return found_TC[:, : int((found_TC >= 0).any(0).sum())].clone()
