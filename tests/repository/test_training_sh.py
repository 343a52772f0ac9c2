"""`training.sh` and its environment variables: what reaches `covey launch`, or the script that takes its place.

The script runs for real in a copy of the repository whose set-up is done: `covey` and `python` are fakes that print
their names and arguments.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.dead_keys import dead_lines

from completed import completed
from covey.config import load
from covey.launch.machine import Machine
from covey.launch.plan import make_plan

FAKE = '#!/usr/bin/env bash\nprintf "%s\\n" "${0##*/}" "$@"\n'


class Script:
    """A copy of `training.sh`, called from a folder next to it."""

    def __init__(self, root: Path, tmp: Path) -> None:
        self.folder, self.away = tmp / "a clone", tmp / "away"
        for environment in (".venv", ".conda"):
            (self.folder / environment / "bin").mkdir(parents=True)
            for name in ("covey", "python"):
                self._program(self.folder / environment / "bin" / name, FAKE)
        (self.folder / "scripts").mkdir()
        self._program(self.folder / "scripts" / "setup.sh", "#!/usr/bin/env bash\n")
        self.away.mkdir()
        shutil.copy(root / "training.sh", self.folder)

    def __call__(self, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(self.folder / "training.sh"), *args]
        clean = {"PATH": os.environ["PATH"], **environment}
        return completed(command, cwd=self.away, env=clean)

    def words(self, *args: str, **environment: str) -> list[str]:
        done = self(*args, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    @staticmethod
    def _program(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)


@pytest.fixture
def script(root: Path, tmp_path: Path) -> Script:
    return Script(root, tmp_path)


def test_the_recipe_comes_first_and_the_command_line_last(script: Script) -> None:
    assert script.words() == ["covey", "launch"]
    assert script.words("r.yaml", "run_name=b", RUN_NAME="a", MAXENT="1") == [
        *("covey", "launch", "r.yaml", "run_name='a'", "objective=maxent", "run_name=b")
    ]
    assert script.words("--num_generations", "8", CONFIG="my r.yaml", MAXENT="0") == [
        *("covey", "launch", "my r.yaml", "--num_generations", "8")
    ]
    twice = script("other.yaml", CONFIG="r.yaml")
    assert (twice.returncode, twice.stderr.count("\n")) == (2, 1)


def test_the_vllm_variables_become_keys(script: Script) -> None:
    words = script.words(
        "r.yaml", VLLM_MODEL="org/it's", VLLM_PORT="8001", VLLM_TP_SIZE="2", VLLM_MAX_LEN="4096", VLLM_MEM_UTIL="0.85"
    )
    assert words[2:] == [
        "r.yaml",
        "launch.vllm_own_gpu=true",
        "launch.vllm_model='org/it\\'s'",
        "training.vllm_server_port=8001",
        "training.vllm_tensor_parallel_size=2",
        "training.vllm_max_model_length=4096",
        "training.vllm_gpu_memory_utilization=0.85",
    ]
    config = load(words[3:])
    assert config.launch.vllm_model == "org/it's"
    assert (config.training.vllm_server_port, config.training.vllm_tensor_parallel_size) == (8001, 2)
    assert (config.training.vllm_max_model_length, config.training.vllm_gpu_memory_utilization) == (4096, 0.85)


@pytest.mark.parametrize("name", ["007", "a, b=c", "it's", "1e5", "back\\slash", "quote\\'s", "end\\", "null"])
def test_text_arrives_as_it_was(script: Script, name: str) -> None:
    _, word = script.words(VLLM_MODEL=name)[2:]
    assert load([word]).launch.vllm_model == name


def test_another_script_takes_the_arguments(script: Script) -> None:
    own = script.away / "my train.py"
    own.touch()
    words = script.words("seed=1", TRAIN_ENTRYPOINT="my train.py", CONFIG="r.yaml", RUN_NAME="x")
    assert words == ["python", "my train.py", "r.yaml", "run_name='x'", "seed=1"]
    assert script.words(TRAIN_ENTRYPOINT=str(own), COVEY_ENV="conda") == ["python", str(own)]
    missing = script(TRAIN_ENTRYPOINT="no.py")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "TRAIN_ENTRYPOINT names 'no.py'" in missing.stderr


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"TRAIN_ENTRYPOINT": "src/maxent-grpo.py"}, ["objective=maxent"]),
        ({"TRAIN_ENTRYPOINT": "src/maxent_grpo.py", "MAXENT": "1"}, ["objective=maxent"]),
        ({"TRAIN_ENTRYPOINT": "src/grpo.py"}, ["objective=grpo"]),
        ({"TRAIN_ENTRYPOINT": "src/grpo.py", "MAXENT": "0"}, ["objective=grpo"]),
        ({"MAXENT": "1"}, ["objective=maxent"]),
    ],
)
def test_the_scripts_of_another_project_choose_the_objective(
    script: Script, environment: dict[str, str], words: list[str]
) -> None:
    assert script.words("r.yaml", **environment) == ["covey", "launch", "r.yaml", *words]
    assert load(words).objective.name == words[0].removeprefix("objective=")
    both = script(TRAIN_ENTRYPOINT="src/grpo.py", MAXENT="1")
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)


def test_a_recipe_with_vllm_gets_the_server_of_the_variables(script: Script, tmp_path: Path) -> None:
    recipe = tmp_path / "maxent.yaml"
    recipe.write_text("model_name_or_path: org/trained\nuse_vllm: true\n", encoding="utf-8")
    variables = {"VLLM_MODEL": "org/served", "VLLM_PORT": "8001", "VLLM_MAX_LEN": "4096", "VLLM_MEM_UTIL": "0.85"}
    words = script.words(str(recipe), **variables)[3:]
    made = make_plan(load(words, recipe), "r", Machine.of(7))
    server, trainer = made.processes
    flags = dict(zip(server.command, server.command[1:], strict=False))
    assert (flags["--model"], flags["--port"]) == ("org/served", "8001")
    assert (flags["--max-model-len"], flags["--gpu-memory-utilization"]) == ("4096", "0.85")
    assert trainer.gpus == tuple("012345")
    alone = make_plan(load(words, recipe), "r", Machine.of(1))
    assert alone.server is None
    assert "a server of its own takes 1 GPU besides the one that trains" in alone.notes[0]
    recipe.write_text("use_vllm: false\n", encoding="utf-8")
    assert any("launch.vllm_model" in line and "training.use_vllm=true" in line for line in dead_lines(words, recipe))


@pytest.mark.parametrize(
    ("more", "small"),
    [
        ({}, True),
        ({"SLURM_GPUS_ON_NODE": "7"}, True),  # it still has little memory
        ({"SLURM_MEM_PER_NODE": "262144"}, False),
        ({"SLURM_CPUS_PER_TASK": "64"}, False),
        ({"SLURM_JOB_ID": ""}, False),
    ],
)
def test_a_job_with_the_headers_resources_is_marked(script: Script, more: dict[str, str], small: bool) -> None:
    Script._program(script.folder / ".venv" / "bin" / "covey", '#!/usr/bin/env bash\necho "${COVEY_STARTER_JOB:-}"\n')
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4", "SLURM_MEM_PER_NODE": "8192"}
    assert script.words("r.yaml", **{**job, **more}) == ["7" if small else ""]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("MAXENT", "yes"), ("VLLM_PORT", "8000,8001"), ("VLLM_MEM_UTIL", "90%"), ("VLLM_TP_SIZE", "two")],
)
def test_a_variable_that_cannot_be_meant_is_refused(script: Script, variable: str, value: str) -> None:
    done = script("seed=1", **{variable: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert variable in done.stderr
    assert value in done.stderr
    assert done.stderr.count("\n") == 1


def test_slurms_copy_finds_the_repository(script: Script, tmp_path: Path) -> None:
    """Slurm runs a copy of the script from its spool folder, in the folder that it was submitted from."""
    spool = tmp_path / "spool" / "job00007"
    spool.mkdir(parents=True)
    copy = shutil.copy(script.folder / "training.sh", spool / "slurm_script")

    def job(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", **environment}
        return completed(["bash", copy, "r.yaml"], cwd=folder, env=clean)

    done = job(script.folder, SLURM_SUBMIT_DIR=str(script.folder))
    assert done.stdout.splitlines() == ["covey", "launch", "r.yaml"], done.stderr
    programs = tmp_path / "programs"
    programs.mkdir()
    Script._program(programs / "scontrol", f'#!/bin/sh\necho "   Command={script.folder}/training.sh r.yaml"\n')
    path = f"{programs}:{os.environ['PATH']}"
    done = job(script.away, SLURM_SUBMIT_DIR=str(script.away), PATH=path)
    assert done.stdout.splitlines() == ["covey", "launch", "r.yaml"], done.stderr
    assert job(script.away, SLURM_SUBMIT_DIR=str(script.away)).returncode == 2


def test_the_header_asks_for_what_the_starter_needs_and_names_a_folder_that_is_there(root: Path) -> None:
    lines = (root / "training.sh").read_text(encoding="utf-8").splitlines()
    header = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert header == [
        *("--job-name=covey", "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=4", "--mem=8G", "--time=01:00:00"),
        *("--output=logs/slurm_%j.out", "--open-mode=append", "--requeue", "--signal=B:USR1@300"),
    ]
    assert lines[1].startswith("#SBATCH")  # Slurm reads no further than the first command
    assert (root / "logs").is_dir()  # which Slurm does not make, and a job fails without it


@pytest.mark.parametrize(
    ("name", "recipe"), [("baseline", "deepscaler.yaml"), ("reasoning", "deepscaler_reasoning_vocab.yaml")]
)
def test_the_vocabulary_experiments_run_their_recipes(script: Script, root: Path, name: str, recipe: str) -> None:
    (script.folder / "slurm").mkdir()
    own = shutil.copy(root / "slurm" / f"train_{name}.sh", script.folder / "slurm")
    wanted = f"{script.folder}/recipes/qwen3_0.6b/grpo/{recipe}"
    assert Path(wanted.replace(str(script.folder), str(root))).is_file()
    clean = {"PATH": os.environ["PATH"]}
    for path, more in (
        (own, {}),
        (shutil.copy(own, script.away / "slurm_script"), {"SLURM_SUBMIT_DIR": str(script.folder)}),
    ):
        done = completed(["bash", path, "seed=1"], cwd=script.away, env={**clean, **more})
        assert done.stdout.splitlines() == ["covey", "launch", wanted, "seed=1"], done.stderr
