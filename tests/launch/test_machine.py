"""The GPUs that drivers list, and when a run last made progress."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from covey.launch import machine
from covey.runlog import RunDirectory

NVIDIA = "GPU 0: NVIDIA H100 (UUID: GPU-1)\\n  MIG 1g\\nGPU 1: NVIDIA H100 (UUID: GPU-2)\\n"
AMD = "GPU[1]\\t\\t: Device Name\\nGPU[0]\\t\\t: Device Name\\nGPU[0]\\t\\t: Device ID\\n"


@pytest.mark.parametrize(
    ("program", "printed", "code", "found"),
    [
        ("nvidia-smi", NVIDIA, 0, ("0", "1")),
        ("nvidia-smi", "NVIDIA-SMI has failed", 9, ()),
        ("rocm-smi", AMD, 0, ("0", "1")),
        (None, "", 0, ()),
    ],
)
def test_gpus_are_those_that_the_driver_lists(
    program: str | None,
    printed: str,
    code: int,
    found: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if program is not None:
        (tmp_path / program).write_text(f"#!/bin/sh\nprintf '{printed}'\nexit {code}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.this_machine({}).gpus == found
    assert machine.this_machine({"CUDA_VISIBLE_DEVICES": "1,-1,0"}).gpus == (("1",) if found else ())


def test_progress_is_what_changes_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(machine.time, "monotonic", lambda: now[0])
    run = RunDirectory(tmp_path)
    run.metrics.write_text("{}\n")
    os.utime(run.metrics, (50, 50))
    os.utime(tmp_path, (40, 40))
    watch = machine.ProgressWatch(run)
    now[0] += 7
    assert watch.seconds_since() == 7
    os.utime(run.metrics, (60, 60))
    now[0] += 2
    assert watch.seconds_since() == 0
    now[0] += 0.25  # the files are not looked at again so soon
    os.utime(run.metrics, (70, 70))
    assert watch.seconds_since() == 0
    now[0] += 5
    watch.restart()
    now[0] += 3
    assert watch.seconds_since() == 3
