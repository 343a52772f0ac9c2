"""A batch of completions whose rewards are being computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from covey.rewards.workers.run_reward import CallResult, SampleResult


class PendingBatch:
    """One batch of completions whose rewards are being computed."""

    def __init__(self, given: Sequence[Any], completions: Sequence[Any]) -> None:
        self.given = given  # kept alive, because batches are found by the identity of this list
        self.completions = completions
        self.grades: dict[str, Future[list[SampleResult]]] = {}
        self.calls: dict[int, Future[list[CallResult]]] = {}
        self.collected: set[int] = set()
        self.reported: set[str] = set()
        self.columns: dict[str, str] = {}  # logged columns, each with the reward that logged it
        self.failed: dict[str, int] = {}  # completions without a reward because of a failure, by function
        self.begun = time.monotonic()
        self.seconds: dict[str, float] = {}  # until results were there, by function or grader
        self.silent: list[str] = []  # functions that gave no completion a reward, and did not fail
        self.rewarded = False  # whether any function gave any completion a reward

    def time(self, name: str, future: Future[Any]) -> None:
        """Measure how long the results of a function or grader take."""
        future.add_done_callback(lambda _: self.seconds.update({name: time.monotonic() - self.begun}))
