"""Runs and sweeps on a Ray cluster of three nodes, all on this machine: `make test-ray`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from covey.config import Config, load
from covey.errors import CoveyError
from covey.launch.machine import Machine
from covey.runlog.checkpoint import is_complete
from launched import MARK, until
from same_run import words

pytestmark = pytest.mark.ray

SECONDS = 240.0
NODES = 3
NONE = Machine()


@pytest.fixture(scope="module")
def mark() -> str:
    return f"ray-{os.getpid()}"


@pytest.fixture(scope="module")
def cluster(mark: str, root: Path) -> Iterator[Any]:
    """Three nodes, each with two CPUs and 8 GPUs that do not exist."""
    from ray.cluster_utils import Cluster

    one = {"num_cpus": 2, "num_gpus": 8, "object_store_memory": 80_000_000}
    patch = pytest.MonkeyPatch()
    patch.setenv(MARK, mark)  # inherited by what its nodes start
    patch.setenv("PYTHONPATH", f"{root / 'src'}:{root / 'tests' / 'support'}")
    patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    made = Cluster(initialize_head=True, head_node_args={**one, "include_dashboard": False})
    for _ in range(NODES - 1):
        made.add_node(**one)
    made.one = one
    yield made
    made.shutdown()
    patch.undo()


@pytest.fixture
def start(
    cluster: Any, mark: str, tiny_model: str, root: Path, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `covey launch` for a run of this name on the cluster, or without `nodes` on this machine."""
    started = []

    def run(name: str, *more: str, **variables: str) -> subprocess.Popen[bytes]:
        asked = words(tiny_model, tmp_path, name, "launch.gpus=0", f"launch.log_dir={tmp_path / 'logs'}", *more)[1:]
        paths = {"PYTHONPATH": str(root / "src"), "RAY_ADDRESS": cluster.address, MARK: mark}
        with (tmp_path / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "covey", "launch", *asked],
                cwd=tmp_path,
                env={**os.environ, **paths, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def _left() -> list[str]:
    """Processes of runs, not of Ray, with the cluster's mark."""
    found = []
    for one in psutil.process_iter():
        try:
            words = " ".join(one.cmdline())
            if one.environ().get(MARK, "").startswith("ray-") and "covey" in words and "pytest" not in words:
                found.append(words)
        except psutil.Error:
            continue
    return [words for words in found if not words.startswith("ray::")]


def _digest(run: Path) -> str:
    return hashlib.sha256((run / "final_model" / "model.safetensors").read_bytes()).hexdigest()


ON_RAY = ("launch.backend=ray", f"launch.nodes={NODES}")
BATCH = ("training.per_device_train_batch_size=4", "training.gradient_accumulation_steps=1")


def test_three_nodes_and_the_loss_of_one(cluster: Any, start: Any, tmp_path: Path) -> None:
    """Each actor in its own copy of Ray's working_dir. They end at the weights of three processes on one machine; so
    does a run whose node was lost on the way, once it was placed again."""
    (tmp_path / "code").mkdir()
    job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"working_dir": str(tmp_path / "code")}})}

    def text() -> str:
        return (tmp_path / "output.txt").read_text()

    assert start("one", *BATCH, "launch.num_processes=3").wait(SECONDS) == 0, text()
    expected = _digest(tmp_path / "one")
    assert start("three", *BATCH, *ON_RAY, **job).wait(SECONDS) == 0, text()
    assert _digest(tmp_path / "three") == expected
    assert re.search(r"on Ray: node 0 \S+, node 1 \S+, node 2 \S+\.", text())

    run = start("lost", *BATCH, *ON_RAY, "launch.node_restarts=1")
    until(lambda: is_complete(tmp_path / "lost" / "checkpoint-2"), SECONDS)
    worker = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
    cluster.remove_node(worker, allow_graceful=False)
    until(lambda: "is lost: " in text(), SECONDS)
    cluster.add_node(**cluster.one)
    assert run.wait(SECONDS) == 0, text()
    assert _digest(tmp_path / "lost") == expected
    assert re.search(r"· node \d \(\S+, \S+, \w{8}\) is lost: ", text())
    assert "the run is placed again and resumes (0 such restarts left)" in text()
    until(lambda: _left() == [], 60.0)


@pytest.mark.long
def test_a_stop_and_a_killed_driver(start: Any, tmp_path: Path) -> None:
    """A run that was asked to stop is resumed to the weights of one that was not; a killed driver leaves nothing."""

    def text() -> str:
        return (tmp_path / "output.txt").read_text()

    assert start("straight", *BATCH, *ON_RAY).wait(SECONDS) == 0, text()
    run = start("stopped", *BATCH, *ON_RAY)
    until(lambda: is_complete(tmp_path / "stopped" / "checkpoint-1"), SECONDS)
    run.send_signal(signal.SIGTERM)
    assert run.wait(SECONDS) == 128 + signal.SIGTERM, text()
    assert not (tmp_path / "stopped" / "final_model").exists()
    assert start("stopped", *BATCH, *ON_RAY, "resume=auto").wait(SECONDS) == 0, text()
    assert _digest(tmp_path / "stopped") == _digest(tmp_path / "straight")

    run = start("killed", *BATCH, *ON_RAY)
    until(lambda: is_complete(tmp_path / "killed" / "checkpoint-1"), SECONDS)
    run.kill()
    until(lambda: _left() == [], 60.0)


def test_a_sweep_is_a_task_a_run(start: Any, tmp_path: Path) -> None:
    run = start("sweep", "--multirun", "seed=1,2", "launch.backend=ray")
    assert run.wait(SECONDS) == 0, (tmp_path / "output.txt").read_text()
    results = (tmp_path / "sweep" / "sweep.md").read_text()
    assert results.count("finished") == 2


@pytest.mark.long
def test_a_sweep_is_stopped_and_resumed(start: Any, tmp_path: Path) -> None:
    run, folder = start("ended", "--multirun", "seed=1,2", "launch.backend=ray"), tmp_path / "ended"
    until(lambda: any(is_complete(one) for one in folder.glob("*/checkpoint-1")), SECONDS)
    run.send_signal(signal.SIGINT)
    assert run.wait(SECONDS) == 128 + signal.SIGINT, (tmp_path / "output.txt").read_text()
    states = [json.loads(file.read_text())["state"] for file in sorted((folder / "jobs").glob("*.json"))]
    assert "stopped" in states
    assert set(states) <= {"stopped", "waiting"}
    until(lambda: _left() == [], 30.0)
    assert start("ended", "--multirun", "seed=1,2", "launch.backend=ray").wait(SECONDS) == 0


# -- in this process


@pytest.fixture
def connected(cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    import ray

    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.chdir(tmp_path)
    yield ray
    ray.shutdown()


def _config(tmp_path: Path, *more: str) -> Config:
    return load([f"output_dir={tmp_path}", f"launch.log_dir={tmp_path}/logs", "run_name=a", *ON_RAY, *more])


STUB = """
import os, pathlib, sys
at = sys.argv.index("--config") + 1
names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "COVEY_RESUME_COMMAND")
said = "|".join(os.environ.get(name, "none") for name in names)
pathlib.Path(f"said-{sys.argv[-2].partition('=')[2]}.txt").write_text(said)
print(sum(line.startswith("run_name: a") for line in open(sys.argv[at])), *sys.argv[at + 1:], flush=True)
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, 3])
def test_every_node_runs_the_command_with_all_its_gpus(
    connected: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    from covey.launch.on_ray import run_on_ray

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    stub = ("-c", STUB.replace("{code}", str(code)))
    assert run_on_ray(_config(tmp_path, "launch.gpus=8"), "a", NONE, "covey launch again", stub) == code
    said = [(tmp_path / f"said-{node}.txt").read_text() for node in range(NODES)]
    assert said == ["0,1,2,3,4,5,6,7|none|covey launch again"] * NODES
    lines = sorted(line for line in capfd.readouterr().out.splitlines() if "launch.node_rank" in line)
    master = connected.util.get_node_ip_address()
    assert lines == [
        f"{name}1 launch.node_rank={node} launch.master={master}"
        for node, name in enumerate(["", "[node 1] ", "[node 2] "])
    ]
    assert (tmp_path / "logs" / "a" / "ray-2.log").stat().st_size > 0


def test_the_number_of_gpus_is_the_clusters(connected: Any, tmp_path: Path) -> None:
    from covey.launch.on_ray import machine_of_cluster, run_on_ray

    assert run_on_ray(_config(tmp_path), "a", machine_of_cluster(NODES), "", ("-c", STUB.replace("{code}", "0"))) == 0
    assert (tmp_path / "said-1.txt").read_text().startswith("0,1,2,3,4,5,6,7|")


def test_what_the_cluster_cannot_run_is_refused(
    connected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from covey.launch import on_ray

    def refused(config: Config) -> str:
        with pytest.raises(CoveyError) as found:
            on_ray.run_on_ray(config, "a", NONE, "", ("-c", "raise SystemExit(9)"))
        return str(found.value)

    said = refused(_config(tmp_path, "launch.gpus=9", "launch.start_timeout=2"))
    assert re.search(r"Ray did not give 3 nodes with 9 GPUs and 1 CPUs each within 2 s .* 8 GPUs 2 CPUs", said)

    with monkeypatch.context() as patch:
        patch.setattr(on_ray, "write_private", lambda file, text: None)  # as on a disk of this machine's own
        said = refused(_config(tmp_path, "launch.gpus=0"))
    assert re.search(r"Node 0 \(\S+\) does not see what this machine has written in \S+", said)

    ours = on_ray._versions(connected)
    with monkeypatch.context() as patch:
        patch.setattr(on_ray, "_versions", lambda ray: {**ours, "Covey": "0.1"})
        said = refused(_config(tmp_path, "launch.gpus=0"))
    assert re.search(r"Node 0 \(\S+\) has Covey \S+, and this machine 0.1: install the same on all", said)

    gone = tmp_path / "gone"
    gone.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(on_ray, "folder_of_driver", lambda ray, config: tmp_path / "not-there")
        said = refused(_config(tmp_path, "launch.gpus=0"))
    assert "which relative paths start from, is not there on" in said


def test_relative_folders_under_a_working_dir(start: Any, tmp_path: Path) -> None:
    """Every node would write into its own copy."""
    (tmp_path / "code").mkdir()
    job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"working_dir": str(tmp_path / "code")}})}
    assert start("a", *ON_RAY, "output_dir=out", **job).wait(SECONDS) == 1
    assert (
        "output_dir=out is relative, and Ray's working_dir gives every node a copy"
        in (tmp_path / "output.txt").read_text()
    )


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from covey.launch.on_ray import run_on_ray

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(CoveyError, match=r"found no usable Ray cluster \(127.0.0.1:1\)"):
        run_on_ray(_config(tmp_path), "a", NONE, "")
