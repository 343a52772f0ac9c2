"""The launcher's plan, a pure function of config and machines: which GPUs serve and train, and with which settings.

Pinned here, by hand: GPUs, processes, ports, files and accelerate configs for 0, 1, 2, 7 and 8 GPUs and for several
nodes, and what does not fit.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey.config import Config, load
from covey.errors import ConfigError
from covey.launch.machine import Machine, Place
from covey.launch.plan import Ports, as_text, make_plan, training_processes
from plans import SERVE, by_name, config, options, plan

AXES = ("dp_replicate", "dp_shard", "tp")


def test_a_server_is_started_for_the_adapters_that_it_is_sent() -> None:
    def rank(*words: str) -> str | None:
        return options(by_name(plan(2, *SERVE, *words))["server"].command).get("--max-lora-rank")

    assert rank("model.lora.rank=12") == "12"
    assert rank() is None
    assert rank("model.lora.rank=12", "training.vllm_lora_sync=merge") is None
    assert rank("model.lora.rank=12", "model.lora.use_dora=true") is None


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
def test_gpus_are_split_between_training_and_server(
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


def test_gpus_keep_their_names_in_the_job() -> None:
    made = make_plan(config(*SERVE), "r", Machine(("3", "GPU-8a", "5")))
    assert by_name(made)["trainer"].environment["CUDA_VISIBLE_DEVICES"] == "3,GPU-8a"
    assert by_name(made)["server"].environment["CUDA_VISIBLE_DEVICES"] == "5"


def test_the_server_gets_the_settings_and_the_trainer_its_address() -> None:
    made = plan(
        *(8, *SERVE, "model.name=org/m", "dataset.max_prompt_length=1024", "training.max_completion_length=3000"),
        ports=Ports(server=8004, group=51300, main=29555),
    )
    server, trainer = by_name(made)["server"], by_name(made)["trainer"]
    assert server.command[:3] == ("python", "-m", "covey.rollout.vllm.serve")
    assert options(server.command) == {
        "--model": "org/m",
        "--host": "127.0.0.1",
        "--port": "8004",
        "--tensor-parallel-size": "1",
        "--max-model-len": "4024",
        "--gpu-memory-utilization": "0.9",
        "--dtype": "bfloat16",
    }
    command = trainer.command[trainer.command.index("train") :]
    assert command == (
        *("train", "--config", "logs/r/config.yaml", "training.vllm_server_host=127.0.0.1"),
        *("training.vllm_server_port=8004", "training.vllm_group_port=51300", "training.vllm_server_timeout=600"),
    )
    assert made.ports == {"server": 8004, "weight_sync": 51300, "main_process": 29555}
    assert made.server is not None
    assert made.server.health == "http://127.0.0.1:8004/health"


def test_the_ports_of_the_config_are_used() -> None:
    made = plan(3, *SERVE, "training.vllm_server_port=8123", "training.vllm_group_port=51999")
    assert made.ports == {"server": 8123, "weight_sync": 51999, "main_process": 29500}
    assert options(by_name(made)["server"].command)["--port"] == "8123"
    assert "training.vllm_server_port=8123" in by_name(made)["trainer"].command


def test_the_server_settings_take_precedence() -> None:
    words = ("launch.vllm_model=org/other", "training.vllm_max_model_length=512", "model.revision=v2")
    more = ("training.vllm_gpu_memory_utilization=0.5", "model.dtype=float16", "model.trust_remote_code=true")
    found = by_name(plan(2, *SERVE, "model.name=org/m", *words, *more))["server"].command
    flags = options(found)
    assert (flags["--model"], flags["--max-model-len"], flags["--revision"]) == ("org/other", "512", "v2")
    assert (flags["--gpu-memory-utilization"], flags["--dtype"]) == ("0.5", "float16")
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


def layout(dp: int, fsdp: int, tp: int) -> dict[str, int]:
    """A mesh as accelerate configures it."""
    return {f"parallelism_config_{axis}_size": size for axis, size in zip(AXES, (dp, fsdp, tp), strict=True)}


@pytest.mark.parametrize(
    ("gpus", "words", "kind", "changed"),
    [
        (2, (), "MULTI_GPU", {"mixed_precision": "bf16"}),
        (2, ("training.bf16=false",), "MULTI_GPU", {"mixed_precision": "no"}),
        (2, ("training.bf16=false", "training.fp16=true"), "MULTI_GPU", {"mixed_precision": "fp16"}),
        (0, ("launch.num_processes=2",), "MULTI_GPU", {"mixed_precision": "no"}),
        (2, ("launch.accelerate=fsdp2",), "FSDP", {}),
        (4, ("model.mesh_shape=[[2,2],[dp,fsdp]]",), "FSDP", {"parallelism_config": layout(2, 2, 1)}),
        (4, ("model.mesh_shape=[[4,1],[fsdp,tp]]",), "FSDP", {"parallelism_config": layout(1, 4, 1)}),
        (4, ("model.mesh_shape=[[2,2],[fsdp,tp]]",), "FSDP", {"parallelism_config": layout(1, 4, 1)}),
        (4, ("model.mesh_shape=[[2,2],[tp,dp]]",), "FSDP", {"parallelism_config": layout(2, 2, 1)}),
        (2, ("model.mesh_shape=[[2],[dp]]",), "MULTI_GPU", {}),
        (4, ("model.mesh_shape=[[1,1],[fsdp,tp]]",), "MULTI_GPU", {}),
        (8, ("launch.accelerate=zero3",), "DEEPSPEED", {}),
        (1, ("launch.accelerate=zero2",), "DEEPSPEED", {"num_processes": 1}),
        (1, ("launch.accelerate=ddp",), "NO", {"num_processes": 1}),
    ],
)
def test_the_accelerate_config_has_the_number_of_processes(
    gpus: int, words: tuple[str, ...], kind: str, changed: dict[str, Any]
) -> None:
    made = plan(gpus, *words, ports=Ports(main=29777))
    assert made.accelerate is not None
    assert made.accelerate["distributed_type"] == kind
    assert {key: made.accelerate[key] for key in changed} == changed
    command = by_name(made)["trainer"].command
    assert command[:4] == ("python", "-m", "covey.cli.accelerate", "launch")
    flags = options(command[: command.index("covey.cli.process")])
    assert flags == {
        "--config_file": "logs/r/accelerate.yaml",
        "--log_dir": "logs/r/torch",
        "--num_processes": str(max(gpus, 1) if gpus else 2),
        "--num_machines": "1",
        "--machine_rank": "0",
        "--main_process_port": "29777",
    }
    assert made.accelerate["num_processes"] == int(flags["--num_processes"])


def test_a_custom_accelerate_config_is_patched(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("distributed_type: FSDP\nnum_processes: 99\nfsdp_config: {fsdp_version: 2}\n")
    made = plan(3, f"launch.accelerate={own}", "launch.main_process_port=1234")
    assert made.accelerate is not None
    assert made.accelerate["num_processes"] == 3
    assert made.accelerate["fsdp_config"] == {"fsdp_version": 2}
    assert made.accelerate["main_process_port"] == 1234
    own.write_text("distributed_type: FSDP\nparallelism_config: {parallelism_config_dp_shard_size: 3}\n")
    with pytest.raises(ConfigError, match="remove one of the two"):
        plan(3, f"launch.accelerate={own}", "model.mesh_shape=[[3],[fsdp]]")
    own.write_text("num_processes: 8\n")
    with pytest.raises(ConfigError, match="no key distributed_type"):
        plan(3, f"launch.accelerate={own}")


def test_deepspeed_on_a_cpu_must_be_asked_for_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("launch.accelerate=zero2", "launch.num_processes=2")
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    with pytest.raises(ConfigError, match=r"needs GPUs.*Use ddp or fsdp2.*DS_ACCELERATOR to cpu"):
        plan(0, *words)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    with pytest.raises(ConfigError, match="needs GPUs"):
        plan(0, *words)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    made = plan(0, *words).accelerate
    assert made is not None
    assert (made["distributed_type"], made["num_processes"], made["mixed_precision"]) == ("DEEPSPEED", 2, "no")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("launch.accelerate={tp}",), "{tp}: its parallelism_config_tp_size is 2, which splits every layer"),
        (("launch.accelerate={cp}",), "{cp}: its parallelism_config_cp_size is 2, which splits every sequence"),
        (("launch.accelerate={fsdp1}", "model.mesh_shape=[[4],[fsdp]]"), "set fsdp_config.fsdp_version: 2 in it"),
        (("launch.accelerate=zero3", "model.mesh_shape=[[4],[fsdp]]"), "leave one of the two out"),
        (("launch.accelerate=zero3", "model.lora.rank=4", "model.lora.merge=true"), "covey export"),
        (("launch.accelerate=fsdp2", "model.lora.rank=4", "model.lora.merge=true"), "covey export"),
        (("model.mesh_shape=[[4],[fsdp]]", "model.lora.rank=4", "model.lora.merge=true"), "covey export"),
        (("objective.resample_groups=1", "training.num_generations=2"), "Set it to 2 or more"),
        (("launch.accelerate={odd}",), "parallelism_config must be a mapping"),
    ],
)
def test_what_training_refuses_of_a_layout_the_plan_refuses_too(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    files = {
        "tp": "distributed_type: FSDP\nparallelism_config: {parallelism_config_tp_size: 2}\n",
        "cp": "distributed_type: FSDP\nparallelism_config: {parallelism_config_cp_size: 2}\n",
        "fsdp1": "distributed_type: FSDP\nfsdp_config: {fsdp_version: 1}\n",
        "odd": "distributed_type: FSDP\nparallelism_config: 4\n",
    }
    paths = {name: tmp_path / f"{name}.yaml" for name in files}
    for name, text in files.items():
        paths[name].write_text(text)
    machine, given = Machine.of(4), [word.format(**paths) for word in words]

    def planned() -> None:
        make_plan(load(given, world_size=lambda found: training_processes(found, machine)), "r", machine)

    with pytest.raises(ConfigError) as caught:
        planned()
    assert message.format(**paths) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sleeping_needs_a_gpu() -> None:
    words = ("training.use_vllm=true", "training.vllm_enable_sleep_mode=true")
    assert plan(1, *words).server is None
    with pytest.raises(ConfigError, match="on a CPU vLLM cannot release its memory"):
        plan(0, *words)


def test_on_several_nodes_the_last_one_serves() -> None:
    place = Place(1, ("a", "b", "c"))
    made = plan(8, *SERVE, "launch.nodes=3", "training.vllm_tensor_parallel_size=2", place=place)
    server, first, second = made.processes
    assert (server.node, server.gpus, options(server.command)["--host"]) == (2, ("6", "7"), "c")
    assert made.num_processes == 16
    for node, trainer in enumerate((first, second)):
        assert trainer.node == node
        assert trainer.gpus == tuple("01234567")
        flags = options(trainer.command)
        assert (flags["--num_machines"], flags["--machine_rank"], flags["--main_process_ip"]) == ("2", str(node), "a")
        assert "training.vllm_server_host=c" in trainer.command
    assert first.log != second.log
    assert made.on(2) == (server,)
    (note,) = made.notes
    assert note.startswith("6 GPUs of the serving node stay idle: raise training.vllm_servers to 4 (or auto), or ")
    assert note.endswith(" training.vllm_tensor_parallel_size to 4.")


@pytest.mark.parametrize(
    ("gpus", "words", "message"),
    [
        (1, SERVE, "leaves none of the 1 to train on. Ask for 2 or more with launch.gpus"),
        (2, (*SERVE, "training.vllm_tensor_parallel_size=4"), "a vLLM server on 4 GPUs, but a node has 2"),
        (8, (*SERVE, "launch.num_processes=8"), "more than the 7 GPUs of a node that train"),
        (2, ("launch.num_processes=3",), "more than the 2 GPUs"),
        (8, ("model.mesh_shape=[[2,2],[dp,fsdp]]",), "lays out 4 processes, but 8 processes train"),
        (3, ("training.use_vllm=true", "training.vllm_tensor_parallel_size=2"), "does not divide the number of proc"),
        (8, (*SERVE, "training.vllm_server_port=70000"), "training.vllm_server_port=70000 is out of range"),
        (0, (*SERVE, "launch.nodes=2"), "set launch.nodes=1, ask for GPUs"),
        (0, ("launch.accelerate=zero3", "launch.num_processes=2"), "needs GPUs"),
        (2, ("launch.accelerate=nothing.yaml",), "none of ddp, fsdp2, zero2, zero3, and no file"),
    ],
)
def test_what_does_not_fit_is_reported(gpus: int, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(gpus, *words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_batch_is_checked_for_the_processes_of_the_plan() -> None:
    words = ["training.per_device_train_batch_size=2", "training.gradient_accumulation_steps=1"]
    words += ["training.num_generations=14", "launch.gpus=7"]

    def processes(made: Config) -> int:
        return training_processes(made, Machine.of(0))

    assert load(words, world_size=processes).launch.gpus == 7
    with pytest.raises(ConfigError, match="8 processes"):
        load([*words[:-1], "launch.gpus=8"], world_size=processes)


def test_a_plan_reads_back_as_yaml() -> None:
    made = plan(3, *SERVE)
    content = yaml.safe_load(as_text(made))
    assert content["server"]["health"] == "http://127.0.0.1:8000/health"
    assert json.loads(json.dumps(content)) == content
    assert as_text(dataclasses.replace(made, notes=("a note",))).endswith("\nnotes: [a note]\n")


def test_the_last_gpu_samples_beside_training_that_is_behind() -> None:
    """With Covey's own engine, a process of the first trainer's has it; with a server nothing changes."""
    made = plan(8, "training.staleness=1")
    (trainer,) = made.processes
    assert (trainer.gpus, made.sampling, made.num_processes) == (tuple("0123456"), ("7",), 7)
    assert trainer.environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6"
    assert trainer.environment["COVEY_SAMPLING_GPU"] == "7"
    assert made.notes == ("GPU 7 samples while 7 GPUs of every node learn (training.staleness=1).",)
    assert training_processes(config("training.staleness=1"), Machine.of(8)) == 7

    served = plan(8, *SERVE, "training.staleness=1")
    assert by_name(served)["trainer"].gpus == tuple("0123456")
    assert by_name(served)["server"].gpus == served.sampling == ("7",)
    assert "COVEY_SAMPLING_GPU" not in by_name(served)["trainer"].environment

    (alone,) = plan(1, "training.staleness=1").processes
    assert alone.gpus == ("0",)
    assert "COVEY_SAMPLING_GPU" not in alone.environment
    (on_a_cpu,) = plan(0, "training.staleness=1").processes
    assert "COVEY_SAMPLING_GPU" not in on_a_cpu.environment
    assert plan(8).sampling == ()


def test_on_several_nodes_the_first_one_samples() -> None:
    made = plan(8, "training.staleness=1", "launch.nodes=2", place=Place(0, ("a", "b")))
    first, second = made.processes
    assert first.gpus == second.gpus == tuple("0123456")
    assert "COVEY_SAMPLING_GPU" in first.environment
    assert "COVEY_SAMPLING_GPU" not in second.environment
    assert made.num_processes == 14


def test_sampling_ahead_needs_a_place_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"training\.vllm_mode=colocate both share the GPUs and take turns"):
        plan(8, "training.use_vllm=true", "training.staleness=1")


def test_without_gpus_a_server_on_another_node_takes_the_weights_of_rounds_from_the_run_directory() -> None:
    made = plan(0, *SERVE, "launch.nodes=3", "training.staleness=1", place=Place(0, ("a", "b", "c")))
    assert [(process.name, process.node) for process in made.processes] == [
        ("server", 2),
        ("trainer", 0),
        ("trainer", 1),
    ]
    assert made.num_processes == 2
