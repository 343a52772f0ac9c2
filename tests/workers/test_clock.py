"""The clock of the workers' deadlines, without workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.workers.clock import CPUReading, ProcessStats, TaskClock


def test_the_clock_counts_running_and_sleeping_but_not_queueing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    reading: CPUReading | None = CPUReading(3.0, asleep=False)
    stats = SimpleNamespace(queued=lambda: reading and reading.queued, read=lambda: reading)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = TaskClock(stats)  # type: ignore[arg-type]
    now, reading = 110.0, CPUReading(9.0, asleep=True)  # six of ten seconds in the queue
    clock.update()
    assert (clock.elapsed, clock.asleep, clock.asleep_now) == (4.0, False, True)  # asleep perhaps for a moment only
    now, reading = 120.0, CPUReading(9.0, asleep=True)
    clock.update()
    assert (clock.elapsed, clock.asleep) == (14.0, True)
    now, reading = 121.0, CPUReading(9.5, asleep=False)
    clock.update()
    assert (clock.elapsed, clock.asleep) == (14.5, False)
    clock.restart()  # the next sample: what came before it does not count
    now, reading = 124.0, CPUReading(10.5, asleep=False)
    clock.update()
    assert clock.elapsed == 2.0
    reading = None
    clock.restart()
    now = 125.5
    clock.update()
    assert (clock.elapsed, clock.asleep) == (1.5, False)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system has no scheduler statistics")
def test_process_stats_tell_sleeping_from_running() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert sleeper.stdin
    assert sleeper.stdout
    with sleeper.stdin, sleeper.stdout:
        own, other = ProcessStats(os.getpid()), ProcessStats(sleeper.pid)
        sleeper.stdout.readline()
        give_up = time.monotonic() + 30
        while not ((use := other.read()) and use.asleep) and time.monotonic() < give_up:
            time.sleep(0.001)
        assert use
        assert use.asleep
        assert not (own.read() or use).asleep
        sleeper.stdin.close()
        sleeper.wait(30)
        assert other.read() is None
        own.close()
        assert own.read() is None
