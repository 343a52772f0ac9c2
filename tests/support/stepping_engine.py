"""An inference engine without a model that writes one token after the other, and can be paused at any of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from covey.rollout import Capabilities, Completion, SamplingSettings
from covey.rollout.engine import InferenceEngine, NamedWeights

END = 1
"""The token that ends a completion."""


def token(seed: int, place: int, weights: str, vocabulary: int = 40) -> int:
    """The token that weights of this name write at this place of a sequence; one in eight ends the completion."""
    drawn = random.Random(f"{seed} {place} {weights}").randrange(8 * vocabulary)
    return END if drawn < vocabulary else 2 + drawn % (vocabulary - 2)


def logp(one: int) -> float:
    """The log-probability of a token, about that of one of five hundred."""
    return -6.2 - 0.01 * (one % 7)


class Weights:
    """A snapshot that is only a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped = False

    def load(self, engine: InferenceEngine, version: int) -> None:
        assert not self.dropped
        assert isinstance(engine, SteppingEngine)
        engine.weights, engine.version = self.name, version
        engine.loaded.append(version)

    def drop(self) -> None:
        assert not self.dropped
        self.dropped = True


class SteppingEngine:
    """Rows advance together, a token at a time. `allow(n)` lets n steps happen; without it all do."""

    capabilities = Capabilities(logprobs=True, seeded=True, row_limits=True, row_seeds=True, interruptible=True)

    def __init__(self, *, vocabulary: int = 40, paused: bool = False, end: int = END) -> None:
        self.vocabulary = vocabulary
        self.end = end
        self.version: int | None = None
        self.weights = ""
        self.loaded: list[int] = []
        self.calls: list[dict[str, Any]] = []
        self.closed = threading.Event()
        self.fails: Callable[[int], None] | None = None
        """Called with the number of each call, and may raise."""
        self._steps = threading.Semaphore(0) if paused else None

    def allow(self, steps: int) -> None:
        """Let this many further steps happen."""
        assert self._steps is not None
        self._steps.release(steps)

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
        limits = list(max_lengths or [sampling.max_completion_length] * len(prompts))
        self.calls.append({"version": self.version, "prompts": [list(p) for p in prompts], "seeds": list(seed)})
        if self.fails is not None:
            self.fails(len(self.calls) - 1)
        ids: list[list[int]] = [[] for _ in prompts]
        found: dict[int, Completion] = {}
        while len(found) < len(prompts):
            if self._stops(interrupted):
                break
            for row in [row for row in range(len(prompts)) if row not in found]:
                new = token(seed[row], len(prompts[row]) + len(ids[row]), self.weights, self.vocabulary)
                ids[row].append(self.end if new == END else new)
                ended = new == END
                if ended or len(ids[row]) == limits[row]:
                    found[row] = self._completion(ids[row], truncated=not ended)
                    if on_ended is not None:
                        on_ended(row, found[row])
        rest = {row: self._completion(one, unfinished=True) for row, one in enumerate(ids) if row not in found}
        return [{**found, **rest}[row] for row in range(len(prompts))]

    def _stops(self, interrupted: Callable[[], bool] | None) -> bool:
        """Wait until a step is allowed; whether the call is interrupted instead."""
        while True:
            if interrupted is not None and interrupted():
                return True
            if self.closed.is_set():
                raise RuntimeError("the engine was closed under a call")
            if self._steps is None or self._steps.acquire(timeout=0.005):
                return False

    def _completion(self, ids: list[int], *, truncated: bool = False, unfinished: bool = False) -> Completion:
        return Completion(list(ids), truncated=truncated, logps=[logp(one) for one in ids], unfinished=unfinished)

    def sync(self, weights: NamedWeights, version: int) -> None:
        """The name of weights is made of their sums."""
        sums = sorted((name, float(tensor.double().sum())) for name, tensor in weights)
        self.weights = str(sum(value * place for place, (_, value) in enumerate(sums, start=1)))
        self.version = version
        self.loaded.append(version)

    def close(self) -> None:
        self.closed.set()


def written(seed: int, prompt_length: int, parts: Sequence[tuple[str, int]], longest: int) -> list[int]:
    """The completion that weights of these names write, each so many tokens of it; the last one all that is left."""
    ids: list[int] = []
    for name, count in parts:
        for _ in range(count):
            ids.append(token(seed, prompt_length + len(ids), name))
            if ids[-1] == END or len(ids) == longest:
                return ids
    return ids
