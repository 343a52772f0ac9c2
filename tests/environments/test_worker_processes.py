"""The processes of environments and tools: what they print, and that they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hostile_environments
from covey.environments.contract import EnvironmentSource
from covey.environments.runner import EnvironmentRunner
from living_processes import all_end

linux = pytest.mark.skipif(sys.platform != "linux", reason="subreapers need Linux")
HOSTILE = hostile_environments.__file__
OBEDIENT = {None: EnvironmentSource(f"{HOSTILE}:Obedient")}


@linux
def test_what_is_printed_goes_to_the_log_and_a_flood_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with EnvironmentRunner(OBEDIENT, timeout=60.0) as runner:
        runner.start(log)
        (environment,) = runner.instances([None])
        environment.reset(at_reset="print before")
        assert environment.do("flood") == "flooded"
        environment.reset(at_reset="print after")
    text = log.read_text(encoding="utf-8")
    assert text.startswith("before\nflood flood ")
    assert len(text) < 6 << 20
    assert " MB of output left out]" in text


def test_processes_end_with_their_runner_and_ctrl_c_is_left_to_the_trainer(tmp_path: Path) -> None:
    with EnvironmentRunner(OBEDIENT, [f"{HOSTILE}:do"]) as runner:
        (environment,) = runner.instances([None])
        environment.reset()
        assert runner.tools[0]("say a") == "a"
        pids = runner.pids
        assert len(pids) == 3
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for pid in pids:
                os.kill(pid, number)
        assert environment.do("say b") == "b"
        assert runner.pids == pids
    assert all_end(pids)


@linux
def test_processes_end_with_a_killed_trainer(root: Path, tmp_path: Path) -> None:
    files = [tmp_path / "first", tmp_path / "second"]
    script = (
        "import sys\nfrom covey.environments.contract import EnvironmentSource\n"
        "from covey.environments.runner import EnvironmentRunner\n"
        f"runner = EnvironmentRunner({{None: EnvironmentSource('{HOSTILE}:Obedient')}}, timeout=1000)\n"
        "first, second = runner.instances([None, None])\n"
        f"first.reset(at_reset='leave {files[0]}')\n"
        f"print(*runner.pids, flush=True)\nsecond.reset(at_reset='leave-and-sleep {files[1]}')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    trainer = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    give_up = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files) and time.monotonic() < give_up:
        time.sleep(0.01)
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    pids += [int(pid) for file in files for pid in file.read_text(encoding="ascii").split()]
    assert len(pids) == 3 + 4
    assert all_end(pids)
