"""Jobs, as they are submitted to the pool, and the tasks that they consist of."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from covey.answers import Outcome
from covey.rewards.library.answers import VALUES
from covey.rewards.workers.run_reward import CallResult, SampleResult


class Job:
    """One submission: its results by index, and the future that is set once all are there."""

    def __init__(self, size: int) -> None:
        self.future: Future[list[Any]] = Future()
        self._results: list[Any] = [None] * size
        self._left = size
        if not size:
            self.future.set_result([])

    def put(self, index: int, result: Any) -> None:
        self._results[index] = result
        self._left -= 1
        if self._left == 0 and not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_result(self._results)

    def fail(self, error: BaseException) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class Task:
    """The unit of work of a worker: one sample, or one call of a batch function."""

    name: str  # of the reward
    payload: bytes
    limit: float  # seconds
    is_call: bool
    busy: bool = False  # whether it works in other processes, while its own sleeps
    size: int = 1  # completions
    key: Hashable | None = None  # in the cache
    waiting: list[tuple[Job, int]] = field(default_factory=list)  # which jobs get the result, and at which index
    ticket: int = 0
    tries: int = 0  # workers that died before they started it
    holder: object = None  # the worker that it was sent to last; None while it is in the queue
    done: bool = False

    @property
    def wanted(self) -> bool:
        """Whether any job still waits for the result."""
        return not all(job.future.cancelled() for job, _ in self.waiting)

    def accepts(self, result: object) -> bool:
        """Whether this has the type and shape of its result."""
        if not isinstance(result, CallResult):
            return not self.is_call
        rows = all(0 <= row < self.size for row, _ in result.bad)
        return self.is_call and rows and len(result.values) == (0 if result.failure else self.size)

    def timed_out(self, elapsed: float) -> SampleResult | CallResult:
        """The result after the deadline."""
        if self.is_call:
            return CallResult(
                failure=f"it had not returned after {elapsed:.3g} s (rewards.batch_timeout={self.limit:g})"
            )
        cause = f"not graded after {elapsed:.3g} s (rewards.timeout={self.limit:g})"
        return SampleResult(VALUES[Outcome.TIMED_OUT], Outcome.TIMED_OUT, cause)

    def crashed(self, cause: str) -> SampleResult | CallResult:
        """The result if the worker died on it."""
        if self.is_call:
            return CallResult(failure=f"its worker process {cause}")
        return SampleResult(VALUES[Outcome.CRASHED], Outcome.CRASHED, f"its worker process {cause}")


class ResultCache:
    """An LRU cache of grading results, thread-safe. Crashes are not kept: their cause may be external."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: OrderedDict[Hashable, SampleResult] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable | None) -> SampleResult | None:
        if key is None:
            return None
        with self._lock:
            found = self._results.get(key)
            if found is not None:
                self._results.move_to_end(key)
            return found

    def put(self, key: Hashable | None, result: SampleResult) -> None:
        if key is None or result.refused or result.outcome is Outcome.CRASHED:
            return
        with self._lock:
            self._results[key] = result
            self._results.move_to_end(key)
            if len(self._results) > self._size:
                self._results.popitem(last=False)
