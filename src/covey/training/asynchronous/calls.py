"""How an engine is called by what it can do: seeds per row, limits per row, interruption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from covey.errors import ConfigError, EngineError
from covey.rollout.engine import Completion, InferenceEngine, SamplingSettings
from covey.rollout.generate import complete, engine_failures
from covey.training.asynchronous.pool import Policy
from covey.training.asynchronous.snapshots import Snapshot

_SEED = 2**31


def check_capabilities(engine: InferenceEngine, policy: Policy) -> None:
    """Raise a `ConfigError` unless the engine can write completions ahead in this way."""
    can, name = engine.capabilities, type(engine).__name__
    off = f"or set training.staleness=0 instead of {policy.staleness}."
    if not can.logprobs:
        raise ConfigError(
            f"The engine {name} returns no log-probabilities (Capabilities.logprobs), and training on completions of "
            f"older weights needs them: return them, {off}"
        )
    if can.collective:
        raise ConfigError(
            f"The engine {name} must be called by all processes (Capabilities.collective), and completions that are "
            f"written ahead are asked for by a thread of the main one only: use another engine, {off}"
        )
    lacks = [one for one in ("interruptible", "row_limits", "row_seeds") if not getattr(can, one)]
    if policy.partial == "continue" and lacks:
        raise ConfigError(
            f"training.async_partial=continue goes on with interrupted completions, and the engine {name} does not say "
            f"that it can (Capabilities.{lacks[0]}): set training.async_partial=finish."
        )


class EngineCaller:
    """One engine, and the snapshot that it has.

    Args:
        sampling: the settings; log-probabilities are asked for in any case.
        vocab_size: see `covey.rollout.generate.complete`.
    """

    def __init__(self, engine: InferenceEngine, sampling: SamplingSettings, vocab_size: int | None) -> None:
        self._engine = engine
        self._sampling = replace(sampling, logprobs=True)
        self._vocab_size = vocab_size
        self._loaded: Snapshot | None = None

    @property
    def max_length(self) -> int:
        """The longest completion, in tokens."""
        return self._sampling.max_completion_length

    def load(self, version: int, snapshot: Snapshot) -> None:
        """Give the engine these weights, if it has others. Raises an `EngineError` if it fails, or does not have them
        afterwards."""
        engine = self._engine
        if snapshot is self._loaded:
            return
        self._loaded = None
        with engine_failures(engine, "sync"):
            snapshot.load(engine, version)
        if engine.version != version:
            raise EngineError(
                f"The engine {type(engine).__name__} has version {engine.version} after sync(weights, {version}): it "
                "must be the version that sync was given."
            )
        self._loaded = snapshot

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        starts: Sequence[int],
        limits: Sequence[int] | None,
        interrupted: Callable[[], bool],
        on_ended: Callable[[int, Completion], None],
    ) -> list[Completion]:
        """The completions of these prompts, or what follows the tokens that there are already.

        Args:
            prompts: token ids, those of the completions so far included.
            seeds: of each completion.
            starts: tokens of each completion so far.
            limits: most further tokens of each; None for up to the longest completion.
            interrupted: see `Capabilities.interruptible`.
            on_ended: see `Capabilities.interruptible`.

        Raises:
            EngineError: the engine fails, or returns no log-probabilities.
        """
        engine, can, more = self._engine, self._engine.capabilities, dict[str, Any]()
        if can.interruptible:
            more = {"interrupted": interrupted, "on_ended": on_ended}
        seed: Any = list(seeds) if can.row_seeds else seeds[0] % _SEED if can.seeded else None
        found = complete(
            engine,
            prompts,
            self._sampling,
            seed=seed,
            vocab_size=self._vocab_size,
            max_lengths=list(limits) if limits is not None else [self.max_length - start for start in starts],
            **more,
        )
        if any(one.logps is None for one in found if one.ids):
            raise EngineError(
                f"The engine {type(engine).__name__} returned completions without log-probabilities: training on "
                "completions of older weights (training.staleness above 0) needs them."
            )
        return found
