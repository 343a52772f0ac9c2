"""How long work has had: the clock of the workers' deadlines, without workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.rewards.clock import Gauge, Use, WorkClock


def test_the_clock_counts_running_and_sleeping_but_not_queueing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    use: Use | None = Use(3.0, asleep=False)
    gauge = SimpleNamespace(queued=lambda: use and use.queued, read=lambda: use)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = WorkClock(gauge)  # type: ignore[arg-type]
    now, use = 110.0, Use(9.0, asleep=True)  # six of ten seconds in the queue
    watch.look()
    assert (watch.elapsed, watch.asleep, watch.dozing) == (4.0, False, True)  # it may have dozed off for a moment only
    now, use = 120.0, Use(9.0, asleep=True)
    watch.look()
    assert (watch.elapsed, watch.asleep) == (14.0, True)
    now, use = 121.0, Use(9.5, asleep=False)
    watch.look()
    assert (watch.elapsed, watch.asleep) == (14.5, False)
    watch.restart()  # the next sample: what came before it does not count
    now, use = 124.0, Use(10.5, asleep=False)
    watch.look()
    assert watch.elapsed == 2.0
    use = None
    watch.restart()
    now = 125.5
    watch.look()
    assert (watch.elapsed, watch.asleep) == (1.5, False)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not say what a process does")
def test_the_gauge_tells_sleep_from_work() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert sleeper.stdin
    assert sleeper.stdout
    with sleeper.stdin, sleeper.stdout:
        own, other = Gauge(os.getpid()), Gauge(sleeper.pid)
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
