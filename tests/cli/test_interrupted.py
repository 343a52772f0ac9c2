"""`covey train` in a process of its own that loses its screen, its terminal, its folder or its life."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from covey.runlog import RunDirectory
from covey.runlog.metrics import read_metrics
from run_sizes import SMALL

ROOT = Path(__file__).parents[2]
WORDS = [
    *("model=starter", *SMALL, "dataset.test_size=6", "dataset.hard_size=3"),
    *("evaluation.every_steps=0", "run_name=run"),
]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def covey(tmp_path: Path) -> Iterator[Start]:
    """Start a command, whose temporary files lie in `tmp_path/temporary`; it is killed at the end of the test."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, stdout: int | IO[Any] = subprocess.DEVNULL, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "covey", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def train(model: str, folder: Path, steps: int) -> list[str]:
    return ["train", *WORDS, f"model.name={model}", f"training.max_steps={steps}", f"output_dir={folder}"]


def wait_for(process: subprocess.Popen[str], run: RunDirectory, steps: int) -> int:
    """Wait until so many further steps are in the metrics; returns how many there are now."""
    first = None
    while process.poll() is None:
        rows = len(read_metrics(run.metrics)) if run.metrics.exists() else 0
        first = rows if first is None else first
        if rows >= first + steps:
            return rows
        time.sleep(0.05)
    raise AssertionError(process.communicate()[1])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_kills_the_reader_too_leaves_a_checkpoint(
    number: signal.Signals, covey: Start, tiny_model: str, tmp_path: Path
) -> None:
    """Ctrl-C in `covey train | tee`, and a closed terminal: both processes get the signal, and `tee` ends first."""
    tee = subprocess.Popen(["tee", str(tmp_path / "screen")], stdin=subprocess.PIPE, process_group=0)
    assert tee.stdin is not None
    process = covey(*train(tiny_model, tmp_path, 9_999), stdout=tee.stdin, process_group=tee.pid)
    tee.stdin.close()
    run = RunDirectory(tmp_path / "run")
    wait_for(process, run, 1)
    tee.send_signal(number)
    tee.wait()
    process.send_signal(number)
    assert "Traceback" not in process.communicate()[1]
    assert process.returncode == 128 + number
    assert len(run.complete_checkpoints()) == 1


@pytest.mark.slow
@pytest.mark.long
def test_nohup_keeps_a_run_and_a_killed_one_leaves_no_temporary_files(
    covey: Start, tiny_model: str, tmp_path: Path
) -> None:
    run, temporary = RunDirectory(tmp_path / "run"), tmp_path / "temporary"
    command = [*train(tiny_model, tmp_path, 9_999), "training.save_steps=1"]
    process = covey(*command, preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_IGN))
    wait_for(process, run, 1)
    process.send_signal(signal.SIGHUP)
    wait_for(process, run, 3)
    process.kill()
    process.wait()
    assert list(temporary.glob("covey-*"))
    again = covey(*command, "stop_after_steps=1")
    assert (again.wait(), list(temporary.glob("covey-*"))) == (0, [])


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_is_deleted_in_mid_run_says_so_and_starts_again(
    covey: Start, tiny_model: str, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    command = train(tiny_model, tmp_path, 9_999)
    process = covey(*command)
    wait_for(process, run, 1)
    shutil.rmtree(run.root, ignore_errors=True)  # a file that is written meanwhile may stay
    told = process.communicate()[1]
    assert process.returncode == 1
    assert "was deleted or moved while" in told
    assert "Traceback" not in told
    again = covey(*command, "stop_after_steps=1")
    assert "Traceback" not in again.communicate()[1]
    assert again.returncode == 0
    assert [step for step, _ in run.complete_checkpoints()] == [1]


@pytest.mark.slow
@pytest.mark.long
def test_two_evaluations_at_once_both_work_or_one_is_refused(covey: Start, tiny_model: str, tmp_path: Path) -> None:
    assert covey(*train(tiny_model, tmp_path, 1)).wait() == 0
    evaluations = [covey("eval", str(tmp_path / "run"), "evaluation=greedy") for _ in range(2)]
    for evaluation in evaluations:
        refused = evaluation.communicate()[1]
        assert "Traceback" not in refused
        assert evaluation.returncode == 0 or "being written by another process" in refused
    assert 0 in [evaluation.returncode for evaluation in evaluations]
