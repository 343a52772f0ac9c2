"""Several vLLM servers: where they are placed, which number `auto` takes, and that each is watched by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey.cli.main import main
from covey.config import load
from covey.errors import ConfigError
from covey.launch.machine import Machine
from covey.launch.plan import LaunchPlan, Ports, training_processes
from covey.launch.servers import Split, estimated, placed_servers, resolved, servings
from covey.runlog import names
from plans import SERVE, config, options, plan

BATCH = ("training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1")


def _servers(made: LaunchPlan) -> list[tuple[int, tuple[str, ...]]]:
    return [(one.node, one.gpus) for one in made.processes if one.name == "server"]


def _trainers(made: LaunchPlan) -> list[tuple[int, int]]:
    return [(one.node, len(one.gpus)) for one in made.processes if one.name == "trainer"]


@pytest.mark.parametrize(
    ("nodes", "gpus", "size", "servers", "serving", "training"),
    [
        (1, 8, 1, 3, [(0, ("5",)), (0, ("6",)), (0, ("7",))], [(0, 5)]),
        (1, 8, 2, 2, [(0, ("4", "5")), (0, ("6", "7"))], [(0, 4)]),
        (2, 4, 2, 2, [(1, ("0", "1")), (1, ("2", "3"))], [(0, 4)]),
        (3, 2, 1, 3, [(0, ("1",)), (1, ("1",)), (2, ("1",))], [(0, 1), (1, 1), (2, 1)]),  # fewer are idle so
        (3, 2, 1, 4, [(1, ("0",)), (1, ("1",)), (2, ("0",)), (2, ("1",))], [(0, 2)]),
        (2, 3, 2, 1, [(1, ("1", "2"))], [(0, 3)]),
    ],
)
def test_where_servers_and_trainers_are(
    nodes: int, gpus: int, size: int, servers: int, serving: Any, training: Any
) -> None:
    words = (f"training.vllm_servers={servers}", f"training.vllm_tensor_parallel_size={size}", f"launch.nodes={nodes}")
    made = plan(gpus, *SERVE, *words, *BATCH, f"training.num_generations={2}")
    assert _servers(made) == serving
    assert _trainers(made) == training
    assert made.num_processes == sum(count for _, count in training)
    assert training_processes(config(*SERVE, *words, *BATCH), Machine.of(gpus)) == made.num_processes


def test_what_each_process_is_told() -> None:
    made = plan(4, *SERVE, "training.vllm_servers=2", ports=Ports(8000, 51216, 29500, ((8000, 8003),)))
    found = [one for one in made.processes if one.name == "server"]
    assert [options(one.command)["--port"] for one in found] == ["8000", "8003"]
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in found] == ["2", "3"]
    assert [one.log.name for one in found] == ["server-0.log", "server-1.log"]
    assert [options(one.command)["--seed"] for one in found] == ["0", "1"]  # else both draw the same
    spread = plan(2, *SERVE, "training.vllm_servers=3", "launch.nodes=3").processes
    assert [options(one.command)["--host"] for one in spread[:3]] == ["0.0.0.0", "<node 1>", "<node 2>"]
    trainer = made.processes[-1]
    assert trainer.environment["COVEY_VLLM_SERVERS"] == "http://127.0.0.1:8000 http://127.0.0.1:8003"
    assert made.ports == {"server_0": 8000, "server_1": 8003, "weight_sync": 51216, "main_process": 29500}
    assert "COVEY_VLLM_SERVERS" not in plan(4, *SERVE).processes[-1].environment


def test_servers_of_somebody_else() -> None:
    made = plan(4, *SERVE, "training.vllm_server_base_url=[http://a:1/,http://b:2]")
    assert [one.url for one in made.servers] == ["http://a:1", "http://b:2"]
    assert made.num_processes == 4
    assert made.processes[-1].environment["COVEY_VLLM_SERVERS"] == "http://a:1 http://b:2"


@pytest.mark.parametrize(
    ("nodes", "gpus", "servers", "message"),
    [
        (1, 8, 8, "8 vLLM servers on 8 GPUs .* leaves none of the 8 to train on"),
        (1, 4, 9, "have no place on 1 node with 4 GPUs: .* Possible numbers: 1, 2, 3"),
        (3, 2, 5, "have no place on 3 nodes with 2 GPUs: .* Possible numbers: 2, 3, 4"),
    ],
)
def test_servers_without_a_place(nodes: int, gpus: int, servers: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(gpus, *SERVE, f"training.vllm_servers={servers}", f"launch.nodes={nodes}")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_every_way_uses_each_gpu_once(nodes: int, size: int) -> None:
    found = list(servings(nodes, 8, size))
    assert found
    for one in found:
        assert one.split.sampling == size * one.count
        assert one.split.sampling + one.split.learning + one.idle == 8 * nodes
        assert one.split.learning > 0
    again = placed_servers(load([f"launch.nodes={nodes}", f"training.vllm_tensor_parallel_size={size}"]), 8)
    assert again is not None
    assert again.count == 1


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The config of a 7B model with 28 and 4 heads."""
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    more = {
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
    }
    (folder / "config.json").write_text(json.dumps({**sizes, **more, "tie_word_embeddings": False}))
    return f"model.name={folder}"


TWO = ("training.per_device_train_batch_size=2", "training.gradient_accumulation_steps=1", "launch.gpus=8")
AUTO = (*SERVE, "training.vllm_servers=auto", *BATCH, "training.num_generations=8")


def test_the_command_of_the_issue(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("launch.gpus=8", "launch.nodes=4", "training.vllm_tensor_parallel_size=4")
    assert main(["launch", "--plan", "--json", *AUTO, model, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    serving = [one for one in found["processes"] if one["name"] == "server"]
    training = [one for one in found["processes"] if one["name"] == "trainer"]
    assert len(serving) >= 2
    assert sum(len(one["gpus"]) for one in (*serving, *training)) == 32
    assert any("vLLM servers on" in note and "by an estimate" in note for note in found["notes"])


def _measured(folder: Path, generation: float, learning: float, servers: int = 1, processes: int = 7) -> Path:
    """A run with these times on one node of 8 GPUs."""
    folder.mkdir()
    row = {"time/generation": generation, "time/backward": learning, names.DEVICE_MEMORY: 1.0}
    rows = [{"step": 0}, *({"step": step, **row} for step in (1, 2, 3))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (folder / "environment.json").write_text(json.dumps({"processes": processes}))
    training = {"use_vllm": True, "vllm_mode": "server", "vllm_servers": servers}
    (folder / "config.yaml").write_text(yaml.safe_dump({"training": training}))
    return folder


@pytest.mark.parametrize(
    ("generation", "learning", "staleness", "servers"),
    [
        # one GPU samples for g s and seven learn for l s, both in proportion: g/s + 7l/(8 - s) is least at
        # s = 8 / (1 + sqrt(7l/g)), and with rounds ahead the larger one at s = 8 / (1 + 7l/g)
        (7.0, 1.0, 0, 4),
        (63.0, 1.0, 0, 6),
        (7.0, 9.0, 0, 2),
        (7.0, 3.0, 1, 2),
        (21.0, 1.0, 1, 6),
    ],
)
def test_auto_takes_the_measured_optimum(
    tmp_path: Path, generation: float, learning: float, staleness: int, servers: int
) -> None:
    run = _measured(tmp_path / "measured", generation, learning)
    given = config(*AUTO, "launch.gpus=8", f"training.staleness={staleness}")
    found, (note,) = resolved(given, Machine.of(8), run, tmp_path / "run")
    assert found.training.vllm_servers == servers
    assert f"{servers} vLLM servers on {servers} GPUs, and {8 - servers} that train" in note
    assert str(run) in note


@pytest.mark.parametrize(("group", "servers"), [(8, 4), (14, 1)])
def test_auto_keeps_to_batches_with_whole_groups(group: int, servers: int) -> None:
    """With two completions a process, only 4 of 8 processes hold groups of 8, and only 7 hold one of 14."""
    given = load([*SERVE, "training.vllm_servers=auto", *TWO, f"training.num_generations={group}"], world_size=group)
    found, _ = resolved(given, Machine.of(8), None, Path("none"))
    assert found.training.vllm_servers == servers


def test_auto_without_a_split(tmp_path: Path) -> None:
    given = load([*SERVE, "training.vllm_servers=auto", *TWO, "training.num_generations=22"], world_size=11)
    with pytest.raises(ConfigError, match="no split of 1 x 8 GPUs leaves training processes whose batch holds whole"):
        resolved(given, Machine.of(8), None, tmp_path)
    run = _measured(tmp_path / "measured", 1.0, 1.0)
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().replace(names.DEVICE_MEMORY, "memory/other"))
    with pytest.raises(ConfigError, match="had no GPU: its times do not say how to split GPUs"):
        resolved(config(*AUTO, "launch.gpus=8"), Machine.of(8), run, tmp_path)


@pytest.mark.parametrize("more", [(), ("model.reasoning_vocab_size=4",)])
def test_auto_where_vllm_shares_the_gpu(more: tuple[str, ...]) -> None:
    """`launch.vllm_own_gpu` leaves the place open, and there is room for no server."""
    words = ("training.use_vllm=true", "launch.vllm_own_gpu=true", "training.vllm_servers=auto", *more)
    assert plan(1 if not more else 4, *words).servers == ()


def test_auto_is_kept_by_a_run_that_is_resumed(tmp_path: Path) -> None:
    run = _measured(tmp_path / "run", 1.0, 1.0, servers=5)
    given = config(*AUTO, "launch.gpus=8")
    found, notes = resolved(given, Machine.of(8), None, run)
    assert found.training.vllm_servers == 5
    assert "with which the run began" in notes[0]
    found, _ = resolved(config(*AUTO, "launch.gpus=8", "overwrite=true"), Machine.of(8), None, run)
    assert found.training.vllm_servers != 5


def test_auto_becomes_a_number_in_the_run(model: str) -> None:
    long = ("training.max_completion_length=2048", "training.gradient_accumulation_steps=64")
    made = plan(8, *AUTO, model, *long)
    count = len(made.servers)
    assert count > 1
    assert f"training.vllm_servers={count}" in made.processes[-1].command
    assert len(plan(0, *AUTO).servers) == 1
    assert plan(8, "training.vllm_servers=auto").servers == ()


def test_the_estimate_by_hand(model: str) -> None:
    """7.6 billion parameters: a step of decoding reads 15.2 GB, and learning computes 8 operations a parameter."""
    more = ("training.max_completion_length=1024", "dataset.max_prompt_length=512", "training.beta=0")
    given = config(*SERVE, model, *BATCH, "training.num_generations=8", *more)
    one = estimated(given, Split(1, 7), 56)
    parameters, length, mean = 7.615e9, 512, 512
    learning = 8 * parameters * 56 * (length + mean) / (989e12 * 0.35 * 7)
    reading, computing = 2 * parameters / (3.35e12 * 0.6), 2 * parameters * 56 / (989e12 * 0.5)
    prefill = 2 * parameters * length * 7 / (989e12 * 0.5)
    assert one.learning == pytest.approx(learning, rel=0.01)
    assert one.generation == pytest.approx(prefill + 1024 * reading + mean * computing, rel=0.01)
    half = estimated(given, Split(2, 6), 56)
    assert half.generation == pytest.approx(prefill / 2 + 1024 * reading + mean * computing / 2, rel=0.01)
    assert estimated(given, Split(1, 7), 56, {"learning": 2.0}).learning == pytest.approx(2 * one.learning)
