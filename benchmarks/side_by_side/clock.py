"""Where the seconds and the memory of a step go."""

from __future__ import annotations

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REST = "rest"


class Clock:
    """Shares the time of a step out among named parts. A part within a part is not counted twice."""

    def __init__(self, synchronise: Callable[[], None]) -> None:
        """Make a clock.

        Args:
            synchronise: waits until the device has done all it was given; called wherever a part begins or ends.
        """
        self._synchronise = synchronise
        self._open = [REST]
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = 0.0

    def start(self) -> None:
        """Start a step."""
        self._seconds.clear()
        self._synchronise()
        self._since = time.perf_counter()

    def stop(self) -> dict[str, float]:
        """End the step: seconds by part, and of the whole as `step`."""
        self._credit()
        return {**self._seconds, "step": sum(self._seconds.values())}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What runs inside belongs to this part."""
        self._credit()
        self._open.append(name)
        try:
            yield
        finally:
            self._credit()
            self._open.pop()

    def _credit(self) -> None:
        self._synchronise()
        now = time.perf_counter()
        self._seconds[self._open[-1]] += now - self._since
        self._since = now


def forget_peak() -> None:
    """Reset the peak, on Linux. Elsewhere it stays that of the process so far."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory() -> int:
    """Peak main memory of this process, in bytes."""
    try:
        return _status("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_now() -> int:
    """Main memory of this process now, in bytes; the peak where the system does not report it."""
    try:
        return _status("VmRSS")
    except OSError:
        return peak_memory()


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(name + ":"):
            return 1024 * int(line.split()[1])
    raise OSError(f"no {name} in /proc/self/status")
