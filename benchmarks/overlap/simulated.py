"""An inference engine that only waits: a number of slots, and completions of drawn lengths."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covey.rollout.engine import Capabilities, Completion, NamedWeights, SamplingSettings

_POLL_SECONDS = 0.002
"""Between two questions whether a call is interrupted."""
TOKEN = 7


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of completions: log-normal, with stragglers."""

    median: float = 40.0
    sigma: float = 0.7
    """Standard deviation of the logarithm."""
    stragglers: float = 0.02
    """Share of completions that are `factor` times as long."""
    factor: float = 5.0
    most: int = 333

    def of(self, seed: int) -> int:
        """The length of the completion with this seed."""
        draw = random.Random(seed)
        length = self.median * draw.lognormvariate(0.0, self.sigma)
        if draw.random() < self.stragglers:
            length *= self.factor
        return max(1, min(self.most, round(length)))


class SimulatedEngine:
    """Writes completions into a number of slots, one after the other as slots get free; a token takes a fixed time.

    A completion's length is a function of its seed, and one that was interrupted goes on where it was.

    Attributes:
        busy: seconds in which it generated or took weights.
    """

    capabilities = Capabilities(logprobs=True, seeded=True, row_limits=True, row_seeds=True, interruptible=True)

    def __init__(self, lengths: Lengths, *, prompt: int, slots: int, token_seconds: float, sync_seconds: float) -> None:
        """
        Args:
            lengths: of completions.
            prompt: tokens of every prompt, by which it knows how many a continued completion has.
            slots: completions that are written at the same time.
            token_seconds: per token and slot.
            sync_seconds: of a weight sync.
        """
        self._lengths, self._prompt, self._slots = lengths, prompt, slots
        self._token, self._sync = token_seconds, sync_seconds
        self.version: int | None = None
        self.busy = 0.0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingSettings,
        *,
        seed: Any = None,
        max_lengths: Sequence[int] | None = None,
        interrupted: Callable[[], bool] | None = None,
        on_ended: Callable[[int, Completion], None] | None = None,
    ) -> list[Completion]:
        """See `InferenceEngine` and `Capabilities`; `seed` has one number per prompt."""
        began = time.perf_counter()
        left = [self._lengths.of(number) - (len(ids) - self._prompt) for ids, number in zip(prompts, seed, strict=True)]
        starts, ends = _placed([count * self._token for count in left], self._slots)
        found: dict[int, Completion] = {}
        for index in sorted(range(len(left)), key=ends.__getitem__):
            if not _wait(began + ends[index], interrupted):
                break
            found[index] = _completion(left[index], unfinished=False)
            if on_ended is not None:
                on_ended(index, found[index])
        now = time.perf_counter() - began
        for index, count in enumerate(left):
            if index not in found:
                written = int(max(0.0, now - starts[index]) / self._token)
                found[index] = _completion(min(written, count - 1), unfinished=True)
        self.busy += time.perf_counter() - began
        return [found[index] for index in range(len(left))]

    def sync(self, weights: NamedWeights, version: int) -> None:
        """See `InferenceEngine`."""
        for _ in weights:
            pass
        time.sleep(self._sync)
        self.busy += self._sync
        self.version = version

    def close(self) -> None:
        """Nothing is held."""


def _placed(seconds: Sequence[float], slots: int) -> tuple[list[float], list[float]]:
    """Start and end of each piece of work, in order on the slots as they get free."""
    free = [0.0] * slots
    starts, ends = list[float](), list[float]()
    for one in seconds:
        starts.append(heapq.heappop(free))
        ends.append(starts[-1] + one)
        heapq.heappush(free, ends[-1])
    return starts, ends


def _wait(until: float, interrupted: Callable[[], bool] | None) -> bool:
    """Sleep until a time; false if the call was interrupted before."""
    while (left := until - time.perf_counter()) > 0:
        if interrupted is not None and interrupted():
            return False
        time.sleep(left if interrupted is None else min(left, _POLL_SECONDS))
    return True


def _completion(count: int, *, unfinished: bool) -> Completion:
    return Completion([TOKEN] * count, truncated=False, logps=[0.0] * count, unfinished=unfinished)
