"""Several nodes of a real Slurm, all on this machine: training with the completions of a rollout process on the first.

With a vLLM server on a node of its own: `tests/real_vllm/test_nodes.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from completed import completed
from real_slurm import missing, running
from same_run import STEPS, without_times, words

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

SECONDS = 240.0
CPU = ("launch.gpus=0", "launch.slurm.cpus=1", "launch.slurm.mem='0'", "launch.slurm.exclusive=false")
BEHIND = ("training.staleness=1", "training.num_iterations=1")


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
