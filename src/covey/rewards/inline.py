"""Rewards in the process of the trainer, with the interface of `WorkerPool` but without deadlines: `workers=0`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from covey.errors import RewardError
from covey.rewards import judging
from covey.rewards.judging import Called, Sampled
from covey.rewards.reward import Reward


class InProcess:
    """Does the work at once, in the calling thread.

    Args:
        rewards: those of the run, by the names they are asked for by.
        finder: finds any other by its name.
    """

    def __init__(self, rewards: Mapping[str, Reward], finder: Callable[[str], Reward]) -> None:
        self._rewards = rewards
        self._finder = finder

    def start(self, output: Path | None = None) -> None:
        """Nothing is to be started, and what is printed goes where the trainer's own output goes."""

    def close(self) -> None:
        """Nothing is to be ended."""

    def submit_grading(
        self, name: str, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> Future[list[Sampled]]:
        """As `WorkerPool.submit_grading`."""
        sample = (self._rewards.get(name) or self._finder(name)).sample
        if sample is None:
            raise RewardError(f"{name} does not grade single completions: call it on whole batches.")
        future: Future[list[Sampled]] = Future()
        future.set_result([judging.grade(sample, text, row) for text, row in zip(completions, rows, strict=True)])
        return future

    def submit_call(self, name: str, kwargs: Mapping[str, Any]) -> Future[list[Called]]:
        """As `WorkerPool.submit_call`."""
        future: Future[list[Called]] = Future()
        future.set_result([judging.call(self._rewards[name].batch, kwargs, len(kwargs["completions"]))])
        return future
