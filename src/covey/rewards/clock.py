"""How long a piece of work has had, by a clock that stops while the machine keeps it waiting for a core.

Wall time alone would fail work for what its neighbours do: on a machine with more to do than cores, a sample that
needs one second may take six. The kernel counts, for every process, the time on a core and the time in the queue for
one; what is left of the wall time, less the queue, is what the work itself took, awake or asleep.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

_ASLEEP = {"S", "D", "I"}  # states of a process that waits for something else than a core


class Use(NamedTuple):
    """What the kernel says of a process: seconds it has waited for a core so far, and whether it sleeps right now."""

    queued: float
    asleep: bool


def read_use(pid: int) -> Use | None:
    """How the main thread of a process is doing; None where the system does not say (only Linux does)."""
    try:
        _, queued, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, ValueError, IndexError):
        return None
    return Use(int(queued) / 1e9, state in _ASLEEP)


class WorkClock:
    """The time that one piece of work has had; it starts at the first look. Without the kernel's word, wall time.

    Attributes:
        elapsed: seconds.
        asleep: whether it slept at the last two looks.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = time.monotonic()
        self._first = self._last = read_use(pid)
        self.elapsed = 0.0
        self.asleep = False

    def look(self) -> None:
        """Bring `elapsed` and `asleep` up to date."""
        now, use = time.monotonic(), read_use(self._pid)
        if use is None or self._first is None:
            self.elapsed = now - self._start
            self.asleep = False
        else:
            self.elapsed = max(self.elapsed, (now - self._start) - (use.queued - self._first.queued))
            self.asleep = use.asleep and self._last is not None and self._last.asleep
        self._last = use
