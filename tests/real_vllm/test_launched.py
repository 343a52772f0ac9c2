"""A launched run with real vLLM: SIGTERM to the whole job, and SIGKILL to launcher and guard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
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
    """Records the call and sleeps, for a signal between the two halves of a step."""
    with Path(__file__).with_name("calls").open("a") as file:
        file.write("called\\n")
    time.sleep(2)
    return [float(len(set(c[-1]["content"]))) for c in completions]
'''
HALVES = ("training.gradient_accumulation_steps=2", "training.steps_per_generation=1")
"""Two generations per step, so that its second half needs the server."""


class Launched:
    """`covey launch`, in the middle of its second step."""

    def __init__(self, folder: Path) -> None:
        (folder / "reward.py").write_text(REWARD, encoding="utf-8")
        self.calls, self._log, self._mark = folder / "calls", folder / "output", uuid.uuid4().hex
        words = ["training.use_vllm=true", "training.vllm_mode=server", "training.vllm_max_model_length=192", *HALVES]
        words += [f"rewards.funcs=[{folder / 'reward.py'}:slow]", "training.max_steps=1000", "evaluation.every_steps=0"]
        words += ["launch.gpus=0", "run_name=r", f"output_dir={folder}", f"launch.log_dir={folder / 'logs'}"]
        with self._log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "covey.cli.main", "launch", *words],
                cwd=folder,
                env={**os.environ, MARK: self._mark},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> dict[int, str]:
        """All its processes: pid and command line."""
        found = {}
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if one.environ().get(MARK) == self._mark and one.status() != psutil.STATUS_ZOMBIE:
                    found[one.pid] = " ".join(one.cmdline())
        return found

    def until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    @property
    def generations(self) -> int:
        """How often completions were generated and graded."""
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    @property
    def output(self) -> str:
        return self._log.read_text()


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    run = Launched(tmp_path)
    try:
        run.until(lambda: run.generations == 3 or run.process.poll() is not None)
        assert run.process.poll() is None, run.output
        yield run
    finally:
        for pid in run.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait()


def test_a_job_that_gets_sigterm_ends_its_step_and_is_saved(launched: Launched, tmp_path: Path) -> None:
    """Every process gets it at once, vLLM's own among them."""
    processes = launched.processes()
    assert any("EngineCore" in line for line in processes.values()), processes
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert launched.process.wait(PATIENCE) == 143, launched.output
    assert launched.processes() == {}
    assert launched.generations == 4  # the second half of the step too, by the same server
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2]
    assert (tmp_path / "r" / "checkpoint-2" / "complete.json").is_file()
    assert launched.output.count("vLLM server started") == 1


def test_an_engine_whose_launcher_guard_and_server_are_killed_is_ended(launched: Launched) -> None:
    """By then it has its own process title, and does not notice that its clients are gone."""
    processes = launched.processes()
    (engine,) = [pid for pid, line in processes.items() if "EngineCore" in line]
    above = {one.pid for one in psutil.Process(engine).parents()} & set(processes)
    assert len(above) == 3, processes
    os.kill(launched.process.pid, signal.SIGSTOP)  # so that it cannot clean up
    for pid in above:
        os.kill(pid, signal.SIGKILL)
    # The trainer may continue for a while.
    launched.until(lambda: not any("VLLM" in line for line in launched.processes().values()))
