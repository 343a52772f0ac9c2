"""A worker process, as the supervisor sees it: its tasks, their time, and when to check on it next."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import deque

from covey.rewards.workers.clock import ProcessStats, TaskClock
from covey.rewards.workers.messages import Inbox
from covey.rewards.workers.tasks import Task

# Seconds until the next check of a worker
_FIRST_CHECK = 0.003  # most samples are done by then
_NEXT_CHECK = 0.01
_CHECK_MAYBE_ASLEEP = 0.001  # it slept at one check: does it sleep at the next?
_CHECK_ASLEEP = 0.1
_CHECK_LOADING = 1.0
_MIN_CHECK = 0.0005


class WorkerHandle:
    """A worker process and its tasks.

    Attributes:
        chunk: tasks that were sent and are not answered; the first one is running.
        began: whether the reward is loaded, so that time counts.
        since: when the chunk was sent.
        check_at: when to check on it again, by the monotonic clock.
        loaded: rewards that it has loaded.
        pidfd: becomes readable when the process ends; None where the system has no pidfds.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.inbox = Inbox(channel)
        self.chunk: deque[Task] = deque()
        self.began = False
        self.since = self.check_at = 0.0
        self.loaded: set[str] = set()
        self.pidfd = _pidfd(pid)
        self._stats = ProcessStats(pid)
        self._clock = TaskClock(self._stats)

    @property
    def sources(self) -> list[socket.socket | int]:
        """What becomes readable when it has sent a message or has ended."""
        return [self.channel] if self.pidfd is None else [self.channel, self.pidfd]

    @property
    def asleep(self) -> bool:
        """Whether its task sleeps, so that its core is free for others."""
        return bool(self.chunk) and self.began and self._clock.asleep

    @property
    def elapsed(self) -> float:
        """The time of the running task in seconds, at the last check."""
        return self._clock.elapsed

    def mark_sent(self) -> None:
        """A chunk was sent; the reward may have to be loaded first."""
        self.began = False
        self.since = time.monotonic()
        self.check_at = self.since + _CHECK_LOADING

    def mark_started(self) -> None:
        """The first task of the chunk has started."""
        self.began = True
        self._clock.restart()
        self.check_at = time.monotonic() + min(_FIRST_CHECK, self.chunk[0].limit) if self.chunk else 0.0

    def check(self) -> None:
        """Update the time, and set when to check again: no later than the deadline."""
        if not self.began:
            self.check_at = time.monotonic() + _CHECK_LOADING
            return
        clock = self._clock
        clock.update()
        wait = _CHECK_ASLEEP if clock.asleep else _CHECK_MAYBE_ASLEEP if clock.asleep_now else _NEXT_CHECK
        left = self.chunk[0].limit - clock.elapsed
        self.check_at = time.monotonic() + max(_MIN_CHECK, min(wait, left))

    def stop(self) -> None:
        """Kill it at once where that is safe: it may occupy the core that the fork server needs to kill it.

        Reaping it, and killing what it started, is still left to the fork server.
        """
        if self.pidfd is not None:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:  # it has died
                return

    def close(self) -> None:
        """Close its socket and files."""
        self.channel.close()
        self._stats.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def _pidfd(pid: int) -> int | None:
    """The pidfd of a process, which never refers to another process of the same id; None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # it has died already, or the system forbids it; the fork server can still kill it
        return None
