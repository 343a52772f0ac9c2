"""How long a piece of work has had, by a clock that stops while the machine keeps it waiting for a core.

Wall time alone would fail work for what its neighbours do: on a machine with more to do than cores, a sample that
needs one second may take six. The kernel counts, for every process, the time on a core and the time in the queue for
one; what is left of the wall time, less the queue, is what the work itself took, awake or asleep.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

_ASLEEP = {b"S", b"D", b"I"}  # states of a process that waits for something else than a core


class Use(NamedTuple):
    """What the kernel says of a process: seconds it has waited for a core so far, and whether it sleeps right now."""

    queued: float
    asleep: bool


class Gauge:
    """Reads how the main thread of a process is doing. The files stay open: a reading takes some microseconds."""

    def __init__(self, pid: int) -> None:
        self._files: list[int] = []
        try:
            for name in ("schedstat", "stat"):
                self._files.append(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
        except OSError:  # only Linux has them
            self.close()

    def queued(self) -> float | None:
        """Seconds that it has waited for a core so far; None where the system does not say, or it is gone."""
        try:
            return int(os.pread(self._files[0], 100, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return None

    def read(self) -> Use | None:
        """The same, and whether it sleeps."""
        queued = self.queued()
        if queued is None:
            return None
        try:
            state = os.pread(self._files[1], 200, 0).rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            return None
        return Use(queued, state in _ASLEEP)

    def close(self) -> None:
        """Let go of the files."""
        while self._files:
            os.close(self._files.pop())


class WorkClock:
    """The time that a process has had for one piece of work after the other. Without the kernel's word, wall time.

    Attributes:
        elapsed: seconds since the piece of work began, at the last look.
        asleep: whether the process slept at the last two looks.
        dozing: whether it slept at the last look.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self.restart()

    def restart(self) -> None:
        """A new piece of work begins."""
        self._start = time.monotonic()
        self._queued = self._gauge.queued()
        self.elapsed = 0.0
        self.asleep = self.dozing = False

    def look(self) -> None:
        """Bring the attributes up to date."""
        now, use = time.monotonic(), self._gauge.read()
        if use is None or self._queued is None:
            self.elapsed = now - self._start
            self.asleep = self.dozing = False
            return
        self.elapsed = max(self.elapsed, (now - self._start) - (use.queued - self._queued))
        self.asleep = use.asleep and self.dozing
        self.dozing = use.asleep
