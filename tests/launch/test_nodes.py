"""Several nodes, all on this machine: two launchers by keys and variables; and those of a real Slurm.

With a vLLM server on a node of its own: `tests/real_vllm/test_nodes.py`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from completed import completed
from covey.runlog.checkpoint import is_complete
from launched import MARK, until
from real_slurm import missing, running
from same_run import STEPS, without_times, words

pytestmark = pytest.mark.slow

SECONDS = 240.0
CPU = ("launch.gpus=0", "launch.slurm.cpus=1", "launch.slurm.mem='0'", "launch.slurm.exclusive=false")
BEHIND = ("training.staleness=1", "training.num_iterations=1")


@pytest.mark.slurm
def test_two_nodes_train_on_what_a_rollout_process_wrote(
    root: Path, tiny_model: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two processes of gloo on two nodes end at the weights of two processes on one."""
    why_not = missing()
    if why_not is not None:
        pytest.skip(f"there can be no Slurm here: {why_not}")
    logs = f"launch.log_dir={tmp_path / 'logs'}"
    settings = {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}

    def launch(name: str, environment: dict[str, str], *more: str) -> str:
        asked = words(tiny_model, tmp_path, name, *BEHIND, *CPU, logs, *more)[1:]
        done = completed(
            [sys.executable, "-m", "covey", "launch", *asked],
            cwd=tmp_path,
            env={**environment, **settings},
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with running(tmp_path_factory.mktemp("s") / "c", nodes=2) as cluster:  # short: paths of sockets are
        job = launch("nodes", cluster.environment, "launch.nodes=2", "--slurm").split()[2].rstrip(":")

        def output() -> str:
            return "\n".join(file.read_text(errors="replace") for file in sorted((tmp_path / "logs").rglob("*.*")))

        cluster.wait_for(
            lambda: cluster.state(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), SECONDS, output
        )
        state = cluster.state(job)
        assert (state["JobState"], state["NumNodes"], state["Restarts"]) == ("COMPLETED", "2", "0"), output()
    launch("processes", dict(os.environ), "launch.num_processes=2")
    rows, others = (without_times(tmp_path / name) for name in ("nodes", "processes"))
    assert rows == others
    ours, theirs = (load_file(tmp_path / name / "final_model" / "model.safetensors") for name in ("nodes", "processes"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    rows = [row for row in rows if "train/loss" in row]
    assert [row["staleness/max"] for row in rows] == [0.0, *[1.0] * (STEPS - 1)]


def test_two_launchers_and_the_loss_of_one(root: Path, tiny_model: str, tmp_path: Path) -> None:
    """They end at the weights of two processes on one node. So they do after a node was lost with all its processes,
    once the same commands have resumed the run."""

    def start(name: str, *more: str, **variables: str) -> subprocess.Popen[bytes]:
        asked = words(tiny_model, tmp_path, name, "launch.gpus=0", f"launch.log_dir={tmp_path / 'logs'}", *more)[1:]
        settings = {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", MARK: f"{tmp_path}{variables}"}
        with (tmp_path / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "covey", "launch", *asked],
                cwd=tmp_path,
                env={**os.environ, **settings, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def text() -> str:
        return (tmp_path / "output.txt").read_text()

    def two(name: str) -> list[subprocess.Popen[bytes]]:
        second = start(name, "launch.nodes=2", "resume=auto", NODE_RANK="1", MASTER_ADDR="127.0.0.1")
        keys = ("launch.node_rank=0", "launch.master=127.0.0.1")
        return [start(name, "launch.nodes=2", "resume=auto", *keys), second]

    def left(of: str) -> list[psutil.Process]:
        return [one for one in psutil.process_iter(["environ"]) if of in (one.info["environ"] or {}).get(MARK, "")]

    def digest(name: str) -> str:
        return hashlib.sha256((tmp_path / name / "final_model" / "model.safetensors").read_bytes()).hexdigest()

    one = start("one", "launch.num_processes=2")
    assert one.wait(SECONDS) == 0, text()
    assert [launcher.wait(SECONDS) for launcher in two("two")] == [0, 0], text()
    assert digest("two") == digest("one")

    launchers = two("lost")
    until(lambda: is_complete(tmp_path / "lost" / "checkpoint-2"), SECONDS)
    for process in left("NODE_RANK"):
        process.kill()
    began = time.monotonic()
    assert launchers[0].wait(SECONDS) != 0
    assert time.monotonic() - began < 30
    assert launchers[1].wait(SECONDS) == -signal.SIGKILL
    assert left(str(tmp_path)) == []
    assert [launcher.wait(SECONDS) for launcher in two("lost")] == [0, 0], text()
    assert digest("lost") == digest("one")
    assert left(str(tmp_path)) == []
