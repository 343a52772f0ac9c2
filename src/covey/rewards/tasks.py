"""What the pool has to do: jobs, as they are submitted, and the tasks that they are made of."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from covey.answers import Outcome
from covey.rewards.correctness import VALUES
from covey.rewards.judging import Called, Sampled


class Job:
    """One submission: its results, by place, and the future that is done once all of them are there."""

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
    """A piece of work that one worker does without a break: one sample, or one call of a batch function."""

    name: str  # of the reward
    payload: bytes
    limit: float  # seconds
    is_call: bool
    key: Hashable | None = None  # of the cache
    waiting: list[tuple[Job, int]] = field(default_factory=list)  # who gets the result
    ticket: int = 0
    tries: int = 0  # workers that died before they began it
    holder: object = None  # the worker that it was sent to last; None while it is in the queue
    done: bool = False

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for the result."""
        return not all(job.future.cancelled() for job, _ in self.waiting)

    def overran(self, elapsed: float) -> Sampled | Called:
        """The result when the deadline has passed."""
        if self.is_call:
            return Called(failure=f"it had not returned after {elapsed:.3g} s (rewards.batch_timeout={self.limit:g})")
        cause = f"not graded after {elapsed:.3g} s (rewards.timeout={self.limit:g})"
        return Sampled(VALUES[Outcome.TIMED_OUT], Outcome.TIMED_OUT, cause)

    def crashed(self, cause: str) -> Sampled | Called:
        """The result when the worker died over it."""
        if self.is_call:
            return Called(failure=f"its worker process {cause}")
        return Sampled(VALUES[Outcome.CRASHED], Outcome.CRASHED, f"its worker process {cause}")


class ResultCache:
    """The newest results of grading by key, for any thread. A crash is not kept: it may have come from outside."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._results: OrderedDict[Hashable, Sampled] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable | None) -> Sampled | None:
        if key is None:
            return None
        with self._lock:
            found = self._results.get(key)
            if found is not None:
                self._results.move_to_end(key)
            return found

    def put(self, key: Hashable | None, result: Sampled) -> None:
        if key is None or result.refused or result.outcome is Outcome.CRASHED:
            return
        with self._lock:
            self._results[key] = result
            self._results.move_to_end(key)
            if len(self._results) > self._size:
                self._results.popitem(last=False)
