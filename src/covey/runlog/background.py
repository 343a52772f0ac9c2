"""Writing records while training goes on: one thread, in order, and an error is told at the next turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_MOST_WAITING = 4


class InBackground:
    """Does jobs one after the other in a thread. At the interpreter's end it waits for those that are left.

    A job must hold its own data: nothing that the caller goes on to change.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="covey-records")
        self._waiting: deque[Future[object]] = deque()

    def add(self, job: Callable[[], object]) -> None:
        """Have a job done soon; waits where jobs come faster than they are done.

        Raises:
            Exception: what an earlier job raised.
        """
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= _MOST_WAITING):
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(job))

    def wait(self) -> None:
        """Come back when every job is done.

        Raises:
            Exception: what a job raised, once each.
        """
        while self._waiting:
            self._waiting.popleft().result()
