"""The Slurm job script: its options and command, and the job's id."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from completed import completed
from covey.config import load
from covey.errors import ConfigError, CoveyError
from covey.launch.machine import Machine
from covey.launch.slurm import check_starter_job, job_id, job_options, render, was_requeued
from plans import SERVE, config, plan


def test_the_job_script_has_the_options_of_the_config() -> None:
    words = ["launch.slurm.account=lab", "launch.slurm.partition=gpu", "launch.slurm.qos=high", "launch.slurm.cpus=16"]
    words += ["launch.slurm.time=3-12:00:00", "launch.slurm.mem=64G", "launch.slurm.exclusive=false"]
    words += ["launch.slurm.signal_seconds=120", "launch.slurm.constraint=a100", "launch.slurm.requeue=false"]
    words += ['launch.slurm.options=["--mail-type=END"]', 'launch.slurm.setup=["module load cuda"]']
    script = render(config(*words), "my run", 4, ["covey", "launch", "r.yaml", "run_name='a b'"], Path("/home/a b"))
    assert script == (
        "#!/usr/bin/env bash\n"
        "#SBATCH --job-name='covey-my run'\n"
        "#SBATCH --account=lab\n"
        "#SBATCH --partition=gpu\n"
        "#SBATCH --qos=high\n"
        "#SBATCH --constraint=a100\n"
        "#SBATCH --nodes=1\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --gres=gpu:4\n"
        "#SBATCH --cpus-per-task=16\n"
        "#SBATCH --mem=64G\n"
        "#SBATCH --time=3-12:00:00\n"
        "#SBATCH --output=logs/slurm_%j.out\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --no-requeue\n"
        "#SBATCH --signal=B:USR1@120\n"
        "#SBATCH --mail-type=END\n"
        "set -euo pipefail\n"
        "cd '/home/a b'\n"
        "module load cuda\n"
        "# exec, so that Slurm's warning before the time limit reaches the launcher.\n"
        "exec covey launch r.yaml 'run_name='\"'\"'a b'\"'\"''\n"
    )
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_several_nodes_run_one_launcher_each() -> None:
    words = ("launch.nodes=4", "launch.slurm.gres=gpu:h100:8")
    script = render(config(*words), "r", 8, ["covey", "launch"], Path("/home"))
    assert "exec srun --ntasks-per-node=1 --cpus-per-task=64 --kill-on-bad-exit=1 covey launch\n" in script
    found = job_options(config(*words), "r", 8)
    assert {"--nodes=4", "--gres=gpu:h100:8", "--time=72:00:00", "--exclusive", "--signal=USR1@300"} <= set(found)
    assert "--gres" not in " ".join(job_options(config(), "r", 0))


def test_a_node_that_samples_and_two_that_learn() -> None:
    """The script starts a launcher on each of three nodes; the last one serves, and 16 GPUs learn."""
    words = (*SERVE, "launch.nodes=3", "training.staleness=1")
    script = render(config(*words), "r", 8, ["covey", "launch"], Path("/home"))
    assert "#SBATCH --nodes=3\n" in script
    assert "#SBATCH --gres=gpu:8\n" in script
    assert "exec srun --ntasks-per-node=1 --cpus-per-task=64 --kill-on-bad-exit=1 covey launch\n" in script
    made = plan(8, *words)
    assert [(process.name, process.node, len(process.gpus)) for process in made.processes] == [
        ("server", 2, 1),
        ("trainer", 0, 8),
        ("trainer", 1, 8),
    ]
    assert made.num_processes == 16
    assert made.notes == (
        "7 GPUs of the serving node stay idle: raise training.vllm_servers to 8 (or auto), or "
        "training.vllm_tensor_parallel_size to 2 or 4.",
    )


def test_a_time_limit_is_checked_and_read_from_a_file(tmp_path: Path) -> None:
    for word in ("72:00:00", "30", "3-0", "90:00", "2-12:30", "UNLIMITED"):
        assert (
            config(f"launch.slurm.time={word}" if word != "30" else "launch.slurm.time='30'").launch.slurm.time == word
        )
    recipe = tmp_path / "r.yaml"
    recipe.write_text("launch:\n  slurm:\n    time: '48:00:00'\n    mem: 0\n")
    assert {"--time=48:00:00", "--mem=0"} <= set(job_options(load([], recipe), "r", 0))
    recipe.write_text("launch:\n  slurm:\n    time: 48:00:00\n")
    with pytest.raises(ConfigError, match="without quotes: write '72:00:00'"):
        load([], recipe)
    for key, value in (("time", "three days"), ("options", '["mail-type=END"]'), ("account", "''")):
        with pytest.raises(ConfigError, match=f"launch.slurm.{key}"):
            config(f"launch.slurm.{key}={value}")


def test_the_job_id() -> None:
    assert job_id({}) is None
    assert job_id({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "bash"}) is None
    assert job_id({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "covey"}) == "7"
    assert job_id({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}) == "7_2"
    assert not was_requeued({"SLURM_RESTART_COUNT": "0"})
    assert was_requeued({"SLURM_RESTART_COUNT": "1"})


def test_a_job_for_the_starter_refuses_other_models(tmp_path: Path) -> None:
    """`training.sh` marks a job that has no more than its own header asks for."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "covey", "COVEY_STARTER_JOB": "7"}
    with pytest.raises(CoveyError) as caught:
        check_starter_job(config("model.name=org/large"), Machine(), job)
    for part in (
        "model.name=org/large",
        "`sbatch --nodes=1 --gres=gpu:7 --cpus-per-task=64 --mem=256G --time=72:00:00 --exclusive training.sh …`",
        "`covey launch … --slurm launch.gpus=7`",
        "launch.gpus=0",
    ):
        assert part in str(caught.value)
    asked = config("model.name=org/large", "launch.gpus=2", "launch.slurm.mem=64G", "launch.slurm.exclusive=false")
    with pytest.raises(CoveyError, match=r"--gres=gpu:2 --cpus-per-task=64 --mem=64G --time=\S+ training\.sh"):
        check_starter_job(asked, Machine(), job)
    small = tmp_path / "small"
    small.mkdir()
    (small / "model.safetensors").write_bytes(b"0" * 1000)
    for words in ((), (f"model.name={small}",), ("model.name=org/large", "launch.gpus=0")):
        assert check_starter_job(config(*words), Machine(), job) == ""
    large = config("model.name=org/large")
    for other in ({"SLURM_JOB_NAME": "interactive"}, {"COVEY_STARTER_JOB": ""}, {"COVEY_STARTER_JOB": "6"}):
        assert check_starter_job(large, Machine(), {**job, **other}) == ""
    assert "--gres=gpu:2 --cpus-per-task=64 --mem=256G" in check_starter_job(large, Machine.of(2), job)


def test_the_experiment_scripts_say_where_to_submit_them_from(root: Path, tmp_path: Path) -> None:
    copy = shutil.copy(root / "slurm" / "train_baseline.sh", tmp_path)
    done = completed(["bash", copy], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("covey: submit this script from the folder of the repository")
