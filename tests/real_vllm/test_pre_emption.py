"""A launched run whose job is pre-empted: SIGTERM to every process at once, real vLLM's own among them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.vllm

MARK = "COVEY_TEST_MARK"
PATIENCE = 300.0
REWARD = '''
import time
from pathlib import Path

def slow(completions, **columns):
    """Says that it was called, and takes its time: for a signal to come between the two halves of a step."""
    with Path(__file__).with_name("calls").open("a") as file:
        file.write("called\\n")
    time.sleep(2)
    return [float(len(set(c[-1]["content"]))) for c in completions]
'''
HALVES = ("training.gradient_accumulation_steps=2", "training.steps_per_generation=1")
"""Completions are written twice a step, so that its second half needs the server."""


def members(mark: str) -> dict[int, str]:
    """All processes of the test: number and command line."""
    found = {}
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.environ().get(MARK) == mark and one.status() != psutil.STATUS_ZOMBIE:
                found[one.pid] = " ".join(one.cmdline())
    return found


def until(holds: Callable[[], Any], process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        said = log.read_text()[-3000:]
        assert process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def test_its_step_ends_with_the_server_and_is_saved(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(REWARD, encoding="utf-8")
    calls, log, mark = tmp_path / "calls", tmp_path / "said", uuid.uuid4().hex
    words = ["training.use_vllm=true", "training.vllm_mode=server", "training.vllm_max_model_length=192", *HALVES]
    words += [f"rewards.funcs=[{tmp_path / 'reward.py'}:slow]", "training.max_steps=1000", "evaluation.every_steps=0"]
    words += ["launch.gpus=0", "run_name=r", f"output_dir={tmp_path}", f"launch.log_dir={tmp_path / 'logs'}"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "covey.cli.main", "launch", *words],
            cwd=tmp_path,
            env={**os.environ, MARK: mark},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        until(lambda: calls.exists() and len(calls.read_text().splitlines()) == 3, process, log)  # half of step 2
        below = members(mark)
        assert any("EngineCore" in line for line in below.values()), below
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 143, log.read_text()[-3000:]
        assert members(mark) == {}
    finally:
        for pid in members(mark):
            os.kill(pid, signal.SIGKILL)
    assert len(calls.read_text().splitlines()) == 4  # the second half of the step was written, by the same server
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2]
    assert (tmp_path / "r" / "checkpoint-2" / "complete.json").is_file()
    assert log.read_text().count("vLLM server started") == 1
