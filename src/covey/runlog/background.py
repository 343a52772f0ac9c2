"""Writing files in a background thread, in order; an error is raised at the next call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_MOST_WAITING = 4


class InBackground:
    """Runs jobs one after the other in a thread. The interpreter waits for them at exit.

    A job must own its data: nothing that the caller changes later.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="covey-records")
        self._waiting: deque[Future[object]] = deque()

    def add(self, job: Callable[[], object]) -> None:
        """Queue a job; blocks while the queue is full. Raises what an earlier job raised."""
        self.check()
        while len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(job))

    def check(self) -> None:
        """Raise what a finished job has raised, once each; does not wait."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Wait for all jobs. Raises what they raised, once each."""
        while self._waiting:
            self._waiting.popleft().result()
