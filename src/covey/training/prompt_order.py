"""The order in which a run goes through its data, with a cursor that checkpoints hold. Knows nothing of TRL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

Cursor = tuple[int, int]
"""Complete passes over the data, and how many rows of the current one are used."""


class PromptOrder:
    """The rows of the data in the order of the run's permutations, one permutation after the other.

    The permutations are those of a run without resampling: `torch.randperm` of one generator. Rows that do not fill the
    last batch of a pass are left out of it: of each permutation others, and in the data's own order, where they would
    always be the same, they begin the next pass.

    Args:
        size: rows in the data.
        shuffle: False keeps the data's own order, in every pass.
        seed: seed of the permutations.
        cursor: where to resume.
    """

    def __init__(self, size: int, *, shuffle: bool, seed: int, cursor: Cursor = (0, 0)) -> None:
        self._size = size
        self._generator = torch.Generator().manual_seed(seed) if shuffle else None
        self._passes = -1
        for _ in range(cursor[0] + 1):
            self._begin_pass()
        self._position = cursor[1]

    @property
    def cursor(self) -> Cursor:
        """The position after the rows returned so far."""
        return self._passes, self._position

    @property
    def passes(self) -> float:
        """Passes over the data so far, with the fraction of the current one."""
        return self._passes + self._position / self._size

    def batch(self, count: int) -> list[int]:
        """The rows of the next generation batch: all of one pass if they are shuffled, so the rest may be skipped."""
        if self._generator is None:
            return self.more(count)
        if self._position + count > self._size:
            self._begin_pass()
        return self._take(count)

    def more(self, count: int) -> list[int]:
        """The next rows, across the end of a pass if need be."""
        taken: list[int] = []
        while len(taken) < count:
            if self._position >= self._size:
                self._begin_pass()
            taken += self._take(count - len(taken))
        return taken

    def _take(self, count: int) -> list[int]:
        taken = self._order[self._position : self._position + count]
        self._position += len(taken)
        return taken

    def _begin_pass(self) -> None:
        self._passes += 1
        self._position = 0
        shuffled = self._generator is not None
        self._order = (
            torch.randperm(self._size, generator=self._generator).tolist() if shuffled else list(range(self._size))
        )


class OwnOrder(Sampler[int]):
    """TRL's sampler without shuffling, but every pass goes on where the last one ended, over the end of the data."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.data_source, self.batch_size = sampler.data_source, sampler.batch_size
        self.shuffle, self.seed = False, sampler.seed
        self.passes = 0

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        size = len(self.data_source)
        before = self.passes * (size // self.batch_size) * self.batch_size
        self.passes += 1
        return ((row + before) % size for row in self._sampler)


def replay_permutations(sampler: Any, count: int) -> None:
    """Draw and drop the permutations of the passes that a resumed run does not make again."""
    if isinstance(sampler, OwnOrder):
        sampler.passes = count
    generator = getattr(sampler, "generator", None)
    if generator is None:
        return
    for _ in range(count):
        torch.randperm(len(sampler.data_source), generator=generator)
