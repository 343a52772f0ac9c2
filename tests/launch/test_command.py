"""`covey launch` on a real run: stopped, resumed, and its job requeued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from completed import completed
from covey.config import load
from covey.launch import execute
from covey.launch.execute import requeue_after_warning
from covey.launch.machine import Machine, Place
from covey.launch.nodes import Seat
from covey.launch.plan import Ports
from covey.launch.supervise import Ending, LaunchConsole
from same_run import STEPS, words

REWARD = """
import time

def slow(completions, **columns):
    time.sleep(0.5)  # for a run to be stopped in the middle
    return [float(len(set(c[-1]["content"]))) for c in completions]
"""


@pytest.mark.slow
def test_a_run_is_launched_stopped_with_a_checkpoint_and_resumed(root: Path, tiny_model: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(REWARD, encoding="utf-8")
    more = (f"rewards.funcs=[{tmp_path / 'slow.py'}:slow]", "evaluation.every_steps=0", "logging=none")
    command = [sys.executable, "-m", "covey.cli.main", "launch", *words(tiny_model, tmp_path, "r", *more)[1:]]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    metrics, deadline = tmp_path / "r" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.is_file() and metrics.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "with a checkpoint" in output
    stopped = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert (tmp_path / "r" / f"checkpoint-{stopped}" / "complete.json").is_file()
    assert json.loads((tmp_path / "logs" / "r" / "finish-0.json").read_text()) == {"code": 143, "orderly": True}

    again = completed(command, cwd=tmp_path, env=environment)
    assert again.returncode == 0, again.stderr
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == list(range(1, STEPS + 1))
    assert f"Resuming from checkpoint-{stopped}" in again.stdout
    logs = tmp_path / "logs" / "r"
    assert f"Resuming from checkpoint-{stopped}" in (logs / "trainer.log").read_text()
    assert "training ended with exit code 0" in (logs / "launcher.log").read_text()


@pytest.mark.parametrize(
    ("ending", "overrides", "node", "message"),
    [
        (Ending(143, signal.SIGUSR1, clean=True), (), 0, "is requeued"),
        (Ending(143, signal.SIGUSR1, clean=True), (), 1, ""),
        (Ending(0, signal.SIGUSR1, clean=True), (), 0, ""),
        (Ending(143, signal.SIGTERM, clean=True), (), 0, ""),
        (Ending(143, signal.SIGUSR1, clean=False), (), 0, "failed when it was asked to stop"),
        (
            Ending(143, signal.SIGUSR1, clean=True),
            ("launch.slurm.requeue=false",),
            0,
            "is not requeued (launch.slurm.requeue=false)",
        ),
    ],
)
def test_a_job_near_its_time_limit_is_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: Ending, overrides: tuple[str, ...], node: int, message: str
) -> None:
    called = tmp_path / "called"
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$*" >{called}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NAME", "covey-r")
    with LaunchConsole(tmp_path / "log") as console:
        requeue_after_warning(load(list(overrides)), ending, node, console, "")
    assert (called.read_text() if called.exists() else "") == ("requeue 4711\n" if message == "is requeued" else "")
    assert message in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("node", "ending", "code"),
    [
        (0, Ending(143, signal.SIGUSR1, clean=True), 143),
        (1, Ending(143, signal.SIGUSR1, clean=True), 0),  # else srun would kill the first node before it has requeued
        (1, Ending(143, signal.SIGUSR1, clean=False), 143),
        (1, Ending(1), 1),
    ],
)
def test_the_first_node_has_the_exit_code_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: int, ending: Ending, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execute, "Supervisor", lambda *_, **__: SimpleNamespace(run=lambda: ending))
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setattr(execute.Nodes, "meet", lambda *_: (Place(node, ("a", "b")), Ports()))
    config = load(["launch.nodes=2", "launch.num_processes=1"])
    assert execute.execute(config, "r", Machine(), Seat(node, 2, "a"), "again") == code
    told = json.loads(next(Path("logs/r/nodes").glob(f"*-{node}-told")).read_text())
    assert told == ["has ended" if ending.clean else "has failed", ending.code]


def test_a_failed_requeue_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    with LaunchConsole(tmp_path / "log") as console:
        requeue_after_warning(
            load([]), Ending(143, signal.SIGUSR1, clean=True), 0, console, "covey launch --slurm run_name=r"
        )
    text = (tmp_path / "log").read_text()
    assert "Slurm did not requeue job 4711" in text
    assert text.endswith("To resume: covey launch --slurm run_name=r\n")
