"""Background writes: order, `wait`, blocking on a slow disk, and errors."""

from __future__ import annotations

import threading

import pytest

from covey.errors import RunDirectoryError
from covey.runlog.files import InBackground


def test_jobs_run_in_order_in_the_background() -> None:
    writes, done, gate = InBackground(), list[int](), threading.Event()
    writes.add(gate.wait)
    for number in range(3):
        writes.add(lambda number=number: done.append(number))
    assert done == []  # the first job still waits
    gate.set()
    writes.wait()
    assert done == [0, 1, 2]


def test_a_caller_that_is_faster_than_the_disk_waits() -> None:
    writes, started = InBackground(), list[int]()
    gates = [threading.Event() for _ in range(5)]

    def job(number: int) -> None:
        started.append(number)
        assert gates[number].wait(timeout=30)

    for number in range(4):
        writes.add(lambda number=number: job(number))
    threading.Timer(0.05, gates[0].set).start()
    writes.add(lambda: job(4))  # the fifth: returns once the first is done
    assert gates[0].is_set()
    for gate in gates:
        gate.set()
    writes.wait()
    assert started == [0, 1, 2, 3, 4]


def test_an_error_is_raised_and_later_jobs_run() -> None:
    writes, done, gate = InBackground(), list[str](), threading.Event()

    def fails() -> None:
        raise RunDirectoryError("the disk is full")

    writes.add(gate.wait)
    writes.add(fails)
    writes.add(lambda: done.append("later"))
    gate.set()
    with pytest.raises(RunDirectoryError, match="disk is full"):
        writes.wait()
    writes.wait()
    assert done == ["later"]
