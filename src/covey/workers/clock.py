"""The time of a task by a clock that stops while the task waits for a core.

By wall time alone a task could time out because of other processes: on an overloaded machine a sample that needs one
second may take six. The kernel counts how long each process has waited for a core; wall time less this wait is what the
task itself took, running or asleep.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

_ASLEEP = {b"S", b"D", b"I"}  # process states: waiting for something other than a core


class CPUReading(NamedTuple):
    """What the kernel reports of a process: seconds spent waiting for a core so far, and whether it sleeps now."""

    queued: float
    asleep: bool


class ProcessStats:
    """Scheduler statistics of a process's main thread. The files stay open: a reading takes microseconds."""

    def __init__(self, pid: int) -> None:
        self._files: list[int] = []
        try:
            for name in ("schedstat", "stat"):
                self._files.append(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
        except OSError:  # only Linux has them
            self.close()

    def queued(self) -> float | None:
        """Seconds spent waiting for a core so far; None if the system does not report it or the process has ended."""
        try:
            return int(os.pread(self._files[0], 100, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return None

    def read(self) -> CPUReading | None:
        """The same, and whether the process sleeps."""
        queued = self.queued()
        if queued is None:
            return None
        try:
            state = os.pread(self._files[1], 200, 0).rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            return None
        return CPUReading(queued, state in _ASLEEP)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.pop())


class TaskClock:
    """The time of the current task of a process; wall time where the kernel reports no waiting time.

    Attributes:
        elapsed: seconds since the task began, at the last update.
        asleep: whether the process slept at the last two updates.
        asleep_now: whether it slept at the last update.
    """

    def __init__(self, stats: ProcessStats) -> None:
        self._stats = stats
        self.restart()

    def restart(self) -> None:
        """A new task begins."""
        self._start = time.monotonic()
        self._queued = self._stats.queued()
        self.elapsed = 0.0
        self.asleep = self.asleep_now = False

    def update(self) -> None:
        """Update the attributes."""
        now, reading = time.monotonic(), self._stats.read()
        if reading is None or self._queued is None:
            self.elapsed = now - self._start
            self.asleep = self.asleep_now = False
            return
        self.elapsed = max(self.elapsed, (now - self._start) - (reading.queued - self._queued))
        self.asleep = reading.asleep and self.asleep_now
        self.asleep_now = reading.asleep
