"""A worker process, as the supervisor sees it: what it was sent, how long that has taken, when to look at it again."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import deque

from covey.rewards.clock import Gauge, WorkClock
from covey.rewards.messages import Inbox
from covey.rewards.tasks import Task

_FIRST_LOOK = 0.003  # seconds that work may go on unwatched: most samples are done by then
_NEXT_LOOK = 0.01
_LOOK_AT_DOZER = 0.001  # one that slept at one look: does it sleep at the next?
_LOOK_AT_SLEEPER = 0.1
_LOOK_AT_LOADING = 1.0
_SOONEST = 0.0005


class Worker:
    """A worker process and what it is doing.

    Attributes:
        chunk: tasks that were sent and are not answered; the first one is being worked on.
        began: whether the reward is loaded, so that time counts.
        since: when the chunk was sent.
        look_at: when to look at it again, by the monotonic clock.
        loaded: rewards that it has loaded.
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.inbox = Inbox(channel)
        self.chunk: deque[Task] = deque()
        self.began = False
        self.since = self.look_at = 0.0
        self.loaded: set[str] = set()
        self._handle = _handle(pid)
        self._gauge = Gauge(pid)
        self._clock = WorkClock(self._gauge)

    @property
    def asleep(self) -> bool:
        """Whether what it works on sleeps, so that its core is free for others."""
        return bool(self.chunk) and self.began and self._clock.asleep

    @property
    def elapsed(self) -> float:
        """What the first task has had, in seconds, at the last look."""
        return self._clock.elapsed

    def sent(self) -> None:
        """It was sent a chunk; the reward may have to be loaded first."""
        self.began = False
        self.since = time.monotonic()
        self.look_at = self.since + _LOOK_AT_LOADING

    def begins(self) -> None:
        """It begins with the first task of its chunk."""
        self.began = True
        self._clock.restart()
        self.look_at = time.monotonic() + min(_FIRST_LOOK, self.chunk[0].limit) if self.chunk else 0.0

    def look(self) -> None:
        """See how it is doing, and settle when to look again: often enough to end the work right at its deadline."""
        if not self.began:
            self.look_at = time.monotonic() + _LOOK_AT_LOADING
            return
        clock = self._clock
        clock.look()
        wait = _LOOK_AT_SLEEPER if clock.asleep else _LOOK_AT_DOZER if clock.dozing else _NEXT_LOOK
        left = self.chunk[0].limit - clock.elapsed
        self.look_at = time.monotonic() + max(_SOONEST, min(wait, left))

    def stop(self) -> None:
        """Kill it at once where the system can do so safely: it may hold the core that its home needs to end it.

        What it started, and reaping it, are still left to the home.
        """
        if self._handle is not None:
            try:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            except ProcessLookupError:  # it has died
                return

    def close(self) -> None:
        """Let go of its socket and of what the system says of it."""
        self.channel.close()
        self._gauge.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _handle(pid: int) -> int | None:
    """A file that stands for a process and never for another one of the same number; None where there is no such."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # it has died already, or the system forbids it; its home can end it all the same
        return None
