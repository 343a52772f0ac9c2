"""A reward worker, as the supervisor sees it: its tasks, their time, and when to check on it next."""

from __future__ import annotations

import socket
import time
from collections import deque

from covey.rewards.workers.tasks import Task
from covey.workers.worker_process import WorkerProcess

# Seconds until the next check of a worker
_FIRST_CHECK = 0.003  # most samples are done by then
_NEXT_CHECK = 0.01
_CHECK_MAYBE_ASLEEP = 0.001  # it slept at one check: does it sleep at the next?
_CHECK_ASLEEP = 0.1
_CHECK_LOADING = 1.0
_MIN_CHECK = 0.0005


class WorkerHandle(WorkerProcess):
    """A worker process and its tasks.

    Attributes:
        chunk: tasks that were sent and are not answered; the first one is running.
        began: whether the reward is loaded, so that time counts.
        since: when the chunk was sent.
        check_at: when to check on it again, by the monotonic clock.
        loaded: rewards that it has loaded.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        super().__init__(pid, channel)
        self.chunk: deque[Task] = deque()
        self.began = False
        self.since = self.check_at = 0.0
        self.loaded: set[str] = set()

    @property
    def asleep(self) -> bool:
        """Whether its task sleeps, so that its core is free for others."""
        return bool(self.chunk) and self.began and self.clock.asleep

    @property
    def elapsed(self) -> float:
        """The time of the running task in seconds, at the last check."""
        return self.clock.elapsed

    def mark_sent(self) -> None:
        """A chunk was sent; the reward may have to be loaded first."""
        self.began = False
        self.since = time.monotonic()
        self.check_at = self.since + _CHECK_LOADING

    def mark_started(self) -> None:
        """The first task of the chunk has started."""
        self.began = True
        self.clock.restart()
        self.check_at = time.monotonic() + min(_FIRST_CHECK, self.chunk[0].limit) if self.chunk else 0.0

    def check(self) -> None:
        """Update the time, and set when to check again: no later than the deadline."""
        if not self.began:
            self.check_at = time.monotonic() + _CHECK_LOADING
            return
        clock = self.clock
        clock.update()
        wait = _CHECK_ASLEEP if clock.asleep else _CHECK_MAYBE_ASLEEP if clock.asleep_now else _NEXT_CHECK
        left = self.chunk[0].limit - clock.elapsed
        self.check_at = time.monotonic() + max(_MIN_CHECK, min(wait, left))
