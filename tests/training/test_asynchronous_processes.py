"""Asynchronous runs whose processes are killed, and of two processes that train together."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from covey.runlog.metrics import read_metrics
from forked import run, run_two
from same_run import STEPS, assert_same_run, words

pytestmark = pytest.mark.slow

STALE = ("training.staleness=1", "training.num_iterations=1")
CHILD = b"covey.rollout.process.child"
RANDOM = 3


def children(folder: Path) -> dict[int, list[str]]:
    """The rollout processes of runs in this folder, which is in their output's path, by id."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and CHILD in (entry / "cmdline").read_bytes():
                output = str((entry / "fd" / "1").readlink())
                if output.startswith(str(folder)):
                    found[int(entry.name)] = [output]
        except OSError:
            continue
    return found


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics, but for times and memory."""
    found = read_metrics(folder / "metrics.jsonl")
    return [{name: v for name, v in row.items() if not name.startswith(("time/", "memory/"))} for row in found]


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="module")
def straight(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that was never disturbed, and its duration."""
    folder = tmp_path_factory.mktemp("straight")
    began = time.monotonic()
    assert run(["covey", *words(tiny_model, folder, "straight", *STALE)], folder / "log") == 0
    return folder / "straight", time.monotonic() - began


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, RANDOM))])
def test_a_killed_trainer_leaves_nothing_behind_and_resumes(
    seed: int, straight: tuple[Path, float], tiny_model: str, tmp_path: Path
) -> None:
    when = random.Random(seed).uniform(0.2, 0.9) * straight[1]
    command, log = ["covey", *words(tiny_model, tmp_path, "killed", *STALE)], tmp_path / "log"
    assert run(command, log, lambda seconds: seconds > when) in (-9, 0)
    assert wait_for(lambda: not children(tmp_path))
    assert run(command, log) == 0, log.read_text()[-2000:]
    assert_same_run(tmp_path / "killed", straight[0])


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.long
def test_a_killed_rollout_process_is_replaced(
    step: int, straight: tuple[Path, float], tiny_model: str, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kills(_: float) -> bool:
        """Kills the rollout process once the run is at a step; never the trainer."""
        begun = step == 0 or (tmp_path / "run" / f"checkpoint-{step}").exists()
        if begun and not killed:
            for pid in children(tmp_path):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return False

    log = tmp_path / "log"
    assert run(["covey", *words(tiny_model, tmp_path, "run", *STALE)], log, kills) == 0, log.read_text()[-2000:]
    assert killed
    assert "another one is started" in (tmp_path / "run" / "train.log").read_text()
    assert_same_run(tmp_path / "run", straight[0])
    assert not children(tmp_path)


def test_two_processes_train_on_what_the_main_one_has_written(
    straight: tuple[Path, float], tiny_model: str, tmp_path: Path
) -> None:
    halves = ("training.per_device_train_batch_size=4", "rewards.workers=0")

    def run_both(name: str, *more: str) -> Path:
        run_two("covey", *words(tiny_model, tmp_path, name, *STALE, *halves, *more), folder=tmp_path / f"log-{name}")
        return tmp_path / name

    whole = run_both("whole")
    found, expected = (read_metrics(folder / "metrics.jsonl") for folder in (whole, straight[0]))
    for name in ("train/reward", "train/completions/mean_length", "staleness/max"):
        assert [row[name] for row in found[1:3]] == [row[name] for row in expected[1:3]]  # both by version 0
    assert [row["train/loss"] for row in found[1:]] == pytest.approx(
        [row["train/loss"] for row in expected[1:]], abs=0.01
    )
    run_both("stopped", "stop_after_steps=2")
    resumed = run_both("stopped")
    assert rows_of(resumed) == rows_of(whole)
    assert len(rows_of(whole)) == STEPS + 1
    ours, theirs = (load_file(folder / "final_model" / "model.safetensors") for folder in (resumed, whole))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
