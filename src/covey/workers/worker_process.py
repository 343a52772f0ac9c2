"""A worker process, as the trainer sees it."""

from __future__ import annotations

import os
import signal
import socket
import sys

from covey.workers.channel import MAX_MESSAGE, Inbox
from covey.workers.clock import ProcessStats, TaskClock


class WorkerProcess:
    """A worker process and its channel.

    Args:
        pid: of the process.
        channel: the trainer's end.
        limit: the longest message that it may send, in bytes.

    Attributes:
        clock: of its current task.
        pidfd: becomes readable when the process ends; None where the system has no pidfds.
    """

    def __init__(self, pid: int, channel: socket.socket, limit: int = MAX_MESSAGE) -> None:
        self.pid = pid
        self.channel = channel
        self.inbox = Inbox(channel, limit)
        self.pidfd = _pidfd(pid)
        self._stats = ProcessStats(pid)
        self.clock = TaskClock(self._stats)

    @property
    def sources(self) -> list[socket.socket | int]:
        """What becomes readable when it has sent a message or has ended."""
        return [self.channel] if self.pidfd is None else [self.channel, self.pidfd]

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
