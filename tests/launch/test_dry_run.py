"""`covey launch` before it starts anything: printed plans and scripts, submitted jobs, and refusals."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from completed import completed
from covey.config import Config


def covey(*words: str) -> int:
    from covey.cli.main import main

    return main(["launch", *words])


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_dry_run_prints_the_plan_touches_nothing_and_loads_nothing_heavy(root: Path, empty: Path) -> None:
    script = (
        "import sys; from covey.cli.main import main; code = main(sys.argv[1:]);"
        "print(sorted({'torch', 'transformers', 'trl', 'accelerate'} & set(sys.modules)), file=sys.stderr);"
        "sys.exit(code)"
    )
    recipe = str(root / "recipes" / "qwen2.5_7b_instruct" / "grpo" / "math.yaml")
    done = completed(
        [sys.executable, "-c", script, "launch", recipe, "launch.gpus=7", "--dry-run", "run_name=r"],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    content = yaml.safe_load(done.stdout)
    assert content["gpus_per_node"] == 7
    assert content["num_processes"] == 6
    assert content["serving_gpus"] == ["6"]
    assert [process["name"] for process in content["processes"]] == ["server", "trainer"]
    assert content["processes"][1]["environment"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5"
    assert content["accelerate"]["config"]["num_processes"] == 6
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("command", ["launch --dry-run", "launch --slurm --dry-run", "launch", "train", "config"])
def test_a_batch_that_a_tensor_parallel_mesh_cannot_divide_is_refused(
    command: str, empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from covey.cli.main import main

    sizes = [f"training.{size}" for size in ("per_device_train_batch_size=3", "gradient_accumulation_steps=1")]
    shape = 'model.mesh_shape=[[2,2],["fsdp","tp"]]'
    assert main([*command.split(), "launch.gpus=4", *sizes, shape, "training.num_generations=3"]) == 2
    error = capsys.readouterr().err
    for part in (
        "(tp)",
        "'[[4], [fsdp]]'",
        *sizes,
        "Set training.per_device_train_batch_size=6",
        "Set by the override",
    ):
        assert part in error
    assert error.count("\n") == 1
    assert list(empty.iterdir()) == []


def test_all_that_plans_shows_the_batch_of_a_tensor_parallel_mesh(
    empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from covey.cli.main import main

    for command in ("launch --dry-run", "launch --plan", "launch --slurm --dry-run", "config", "doctor"):
        assert main([*command.split(), "launch.gpus=4", 'model.mesh_shape=[[2,2],["fsdp","tp"]]']) == 0
        printed = "".join(capsys.readouterr())
        assert " ".join(printed.split()).count("training.per_device_train_batch_size=16 (was 32)") == 1, command
    assert "a generation batch is 8 × 8 = 64 completions a process" in " ".join(printed.split())
    assert covey("--dry-run", "launch.gpus=4", 'model.mesh_shape=[[4,1],["fsdp","tp"]]') == 0
    assert "parallelism_config_dp_shard_size: 4" in capsys.readouterr().out
    assert list(empty.iterdir()) == []


def test_the_plan_says_in_words_where_vllm_runs(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("training.use_vllm=true", "vllm_device=auto", "model.name=org/m")
    assert covey("--dry-run", "launch.gpus=8", *words) == 0
    made = yaml.safe_load(capsys.readouterr().out)
    assert made["serving_gpus"] == ["7"]
    assert made["notes"][0].startswith("vLLM gets 1 of the 8 GPUs of the node for itself")
    assert covey("--dry-run", "--slurm", "launch.gpus=8", *words) == 0
    assert "vLLM gets 1 of the 8 GPUs" in capsys.readouterr().err


def test_a_dry_run_of_a_job_prints_its_script(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert covey("--slurm", "--dry-run") == 0
    assert "launch.gpus is not set: the job asks for" in capsys.readouterr().err
    assert covey("launch.gpus=7", "--slurm", "--dry-run", "seed=3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "#SBATCH --gres=gpu:7" in lines
    assert f"cd {empty}" in lines
    assert " launch launch.gpus=7 seed=3 run_name=" in lines[-1]
    assert list(empty.iterdir()) == []


def test_without_sbatch_no_job_is_submitted(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(empty))
    assert covey("--slurm") == 1
    assert "There is no sbatch on this machine" in capsys.readouterr().err
    assert list(empty.iterdir()) == []


def test_a_job_is_submitted(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "sbatch"
    program.write_text('#!/bin/sh\necho "$@" >called\necho "$COVEY_RESUME_COMMAND" >resume\necho "4711;cluster"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert covey("--slurm", "launch.gpus=0", "run_name=x") == 0
    assert (empty / "called").read_text() == "--parsable logs/x/job.sbatch\n"
    assert (empty / "resume").read_text() == "covey launch --slurm launch.gpus=0 run_name=x\n"
    output = capsys.readouterr().out
    assert "Slurm job 4711" in output
    assert "logs/slurm_4711.out" in output
    assert "run_name=x" in (empty / "logs" / "x" / "job.sbatch").read_text()


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (("launch.gpus=0", "run_name=a b"), ""),
        (("launch.gpus=0", "--seed", "3"), " run_name={name}"),
        (("--overwrite=true", "run_name=x", "training.hub_token=secret"), " resume=auto overwrite=false"),
    ],
)
def test_the_command_that_resumes_is_the_one_given(
    words: tuple[str, ...], added: str, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def execute(config: Config, name: str, machine: object, place: object, resume: str) -> int:
        asked.append((name, resume))
        return 0

    monkeypatch.setattr("covey.launch.execute.execute", execute)
    monkeypatch.setattr("covey.launch.machine._listed_gpus", lambda: ())
    assert covey(*words) == 0
    (name, resume), *_ = asked
    given = shlex.join(word for word in words if "secret" not in word)
    assert resume == f"covey launch {given}{added.format(name=name)}"
    monkeypatch.setenv("COVEY_RESUME_COMMAND", "covey launch --slurm run_name=x")  # of the job that this is
    assert covey("run_name=x") == 0
    assert asked[1][1] == "covey launch --slurm run_name=x"
    assert "COVEY_RESUME_COMMAND" not in os.environ


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("launch.gpus=2",), 1, "launch.gpus=2, but this machine has none"),
        (("WORLD_SIZE=2",), 2, "WORLD_SIZE=2 says that this is one of several"),
        (("launch.nodes=2",), 2, "nothing says which node this is"),
        (("--slurm", "--dry-run", "--multirun", "seed=1,2"), 2, "hydra/launcher=submitit_slurm"),
        (("launch.gpus=-1",), 2, "launch.gpus"),
    ],
)
def test_what_cannot_be_launched_is_reported_in_one_paragraph(
    words: tuple[str, ...],
    code: int,
    message: str,
    empty: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("covey.launch.machine._listed_gpus", lambda: ())
    if words[0].startswith("WORLD_SIZE"):
        monkeypatch.setenv(*words[0].split("="))
        words = ()
    assert covey(*words) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(empty.iterdir()) == []


def test_sweeps_and_views_are_those_of_train(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = []

    def run_sweep(request: Any, given: list[str], **_: Any) -> int:
        swept.append(given)
        return 5

    monkeypatch.setattr("covey.cli.sweep.run_sweep", run_sweep)
    assert covey("--multirun", "seed=1,2") == 5
    assert swept == [["launch", "--multirun", "seed=1,2"]]
    assert covey("--cfg", "job", "launch.gpus=3") == 0
    assert "gpus: 3" in capsys.readouterr().out
