"""Rewards in the process of the trainer, with the interface of `WorkerPool` but without deadlines: `workers=0`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from covey.errors import RewardError
from covey.rewards.reward import Reward
from covey.rewards.workers import run_reward
from covey.rewards.workers.run_reward import CallResult, SampleResult


class InProcess:
    """Runs rewards at once, in the calling thread.

    Args:
        rewards: the rewards of the run, by name.
        finder: finds any other reward by its name.
    """

    def __init__(self, rewards: Mapping[str, Reward], finder: Callable[[str], Reward]) -> None:
        self._rewards = rewards
        self._finder = finder

    def start(self, output: Path | None = None) -> None:
        """There is nothing to start; what rewards print goes to the trainer's own output."""

    def close(self) -> None:
        """There is nothing to end."""

    def submit_grading(
        self, name: str, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> Future[list[SampleResult]]:
        """As `WorkerPool.submit_grading`."""
        sample = (self._rewards.get(name) or self._finder(name)).sample
        if sample is None:
            raise RewardError(f"{name} does not grade single completions: call it on whole batches.")
        future: Future[list[SampleResult]] = Future()
        future.set_result([run_reward.grade(sample, text, row) for text, row in zip(completions, rows, strict=True)])
        return future

    def submit_call(self, name: str, kwargs: Mapping[str, Any]) -> Future[list[CallResult]]:
        """As `WorkerPool.submit_call`."""
        reward = self._rewards.get(name) or self._finder(name)
        future: Future[list[CallResult]] = Future()
        future.set_result([run_reward.call(reward.batch, kwargs, len(kwargs["completions"]))])
        return future
