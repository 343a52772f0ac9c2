"""Where `covey launch` puts vLLM for recipes that gave it a GPU of its own, and what the plan says about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.config import load
from covey.errors import ConfigError
from covey.launch.machine import Machine, Place
from covey.launch.plan import LaunchPlan, make_plan, training_processes
from plans import SERVE, by_name, config, options, plan

RECIPE = """\
model_name_or_path: org/model
# One process less than GPUs, as vLLM takes one of them
num_processes: 7
use_vllm: true
vllm_device: {device}
vllm_gpu_memory_utilization: 0.7
per_device_train_batch_size: 16
gradient_accumulation_steps: 16
num_generations: 7
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "old.yaml"
    file.write_text(RECIPE.format(device="auto"), encoding="utf-8")
    return file


def planned(recipe: Path, gpus: int, *words: str, place: Place | None = None) -> LaunchPlan:
    """The plan of a recipe, its batch checked for the processes of the plan."""
    machine = Machine.of(gpus)
    made = load(words, recipe, world_size=lambda found: training_processes(found, machine))
    return make_plan(made, "r", machine, place)


@pytest.mark.parametrize("device", ["auto", "cuda:7", "cuda:0", "cuda"])
def test_a_recipe_that_gave_vllm_a_gpu_gets_a_server_on_one(recipe: Path, device: str) -> None:
    recipe.write_text(RECIPE.format(device=device), encoding="utf-8")
    made = planned(recipe, 8)
    found = by_name(made)
    assert found["server"].gpus == ("7",)
    assert found["trainer"].gpus == tuple("0123456")
    assert made.num_processes == 7  # what the recipe was written for
    assert options(found["server"].command)["--gpu-memory-utilization"] == "0.7"
    assert "training.vllm_mode=server" in found["trainer"].command
    assert made.notes[0].startswith("vLLM gets 1 of the 8 GPUs of the node for itself")
    assert "training.vllm_mode=colocate shares" in made.notes[0]


@pytest.mark.parametrize(
    ("gpus", "words", "serving", "processes"),
    [
        (2, (), ("1",), 1),
        (8, ("training.vllm_tensor_parallel_size=2",), ("6", "7"), 6),
        (8, ("launch.num_processes=4",), ("7",), 4),
        (8, ("training.vllm_mode=colocate",), (), 8),  # the user's word
        (1, (), (), 1),
        (0, (), (), 1),
        (2, ("training.vllm_tensor_parallel_size=2",), (), 2),
        (8, ("training.use_vllm=false",), (), 8),
        (8, ("training.use_cpu=true",), (), 1),
        (8, ("model.reasoning_vocab_size=8",), (), 8),  # which a server cannot start with
    ],
)
def test_the_number_of_gpus_and_the_user_decide(
    recipe: Path, gpus: int, words: tuple[str, ...], serving: tuple[str, ...], processes: int
) -> None:
    made = planned(recipe, gpus, "training.num_generations=2", *words)
    found = by_name(made)
    assert (found["server"].gpus if "server" in found else ()) == serving
    assert made.num_processes == processes
    assert ("training.vllm_mode=server" in found["trainer"].command) == bool(serving)
    if words in ((), ("training.vllm_tensor_parallel_size=2",)) and not serving:
        assert made.notes[0].startswith("vLLM runs in the training processes (training.vllm_mode=colocate)")


def test_on_several_nodes_the_last_one_is_vllms(recipe: Path) -> None:
    made = planned(recipe, 7, "launch.nodes=2", place=Place(0, ("a", "b")))
    assert (made.processes[0].name, made.processes[0].node) == ("server", 1)
    assert made.num_processes == 7
    assert "of the last node" in made.notes[0]


def test_a_server_on_this_machine_is_started_where_the_recipe_says(tmp_path: Path) -> None:
    """The MaxEnt-GRPO project's launcher always starts the server that its recipes name by `vllm_url`."""
    recipe = tmp_path / "maxent.yaml"
    text = "model_name_or_path: org/model\nuse_vllm: true\nvllm_mode: server\nvllm_url: {}\n"
    recipe.write_text(text.format("http://localhost:29525/generate/"), encoding="utf-8")
    made = planned(recipe, 7)
    assert options(by_name(made)["server"].command)["--port"] == "29525"
    assert made.server is not None
    assert made.server.is_ours
    assert made.num_processes == 6
    recipe.write_text(text.format("http://far:29525/generate/"), encoding="utf-8")
    made = planned(recipe, 7)
    assert made.server is not None
    assert (made.server.is_ours, made.server.url, made.num_processes) == (False, "http://far:29525", 7)


@pytest.mark.parametrize(
    ("gpus", "words", "parts"),
    [
        (
            8,
            ("training.use_vllm=true",),
            ("shares the training GPUs and takes 30% of each", "training.vllm_mode=server"),
        ),
        (
            8,
            ("training.use_vllm=true", "training.vllm_gpu_memory_utilization=0.9"),
            ("takes 90% of each", "training.vllm_mode=server", "training.vllm_gpu_memory_utilization"),
        ),
        (
            1,
            ("training.use_vllm=true", "training.vllm_gpu_memory_utilization=0.9"),
            ("takes 90% of the memory", "training.vllm_mode=server", "lower training.vllm_gpu_memory_utilization"),
        ),
        (1, ("training.use_vllm=true",), ()),
        (8, ("training.use_vllm=true", "training.vllm_mode=colocate"), ()),
        (8, SERVE, ()),
        (8, (), ()),
    ],
)
def test_the_plan_says_that_vllm_shares_the_gpus(gpus: int, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    notes = plan(gpus, *words).notes
    assert len(notes) == bool(parts)
    assert all(part in notes[0] for part in parts)


def test_a_batch_that_fits_beside_a_server_names_it(recipe: Path) -> None:
    """The recipe was written for seven training processes; the advice is not only another size of its groups."""
    recipe.write_text(RECIPE.replace("vllm_device: {device}\n", ""), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"or training\.vllm_mode=server, .* leaves 7 to train"):
        planned(recipe, 8)
    assert planned(recipe, 8, "training.vllm_mode=server").num_processes == 7
    with pytest.raises(ConfigError) as caught:
        planned(recipe, 7, "training.use_vllm=false", "training.num_generations=5")
    assert "vllm_mode" not in str(caught.value)


def test_a_server_cannot_have_the_reasoning_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"reasoning_vocab_size=8 with training\.vllm_mode=server"):
        config(*SERVE, "model.reasoning_vocab_size=8")
