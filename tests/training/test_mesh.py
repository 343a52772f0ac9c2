"""Device meshes: which are accepted, which are refused and why, and their arguments for transformers."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from covey.cli.main_process import is_main, process_label
from covey.config import compose, to_yaml
from covey.config.groups.mesh import Mesh, check_mesh
from covey.errors import ConfigError, RunDirectoryError
from covey.runlog import read_metrics
from covey.training.checkpoint.state import TrainingProgress, load_progress, save_progress
from covey.training.checks.needs import check_supported
from covey.training.processes import Processes, StopRequest, check_layout, mesh_arguments
from forked import run_two
from mesh_processes import CASES
from scripted import assert_same_gradient

SAVED = TrainingProgress(4, 0, None, {}, {}, 0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("shape", "processes", "mesh"),
    [
        (None, 1, Mesh()),
        (None, 8, Mesh()),
        ([[1, 1], ["fsdp", "tp"]], 4, Mesh()),
        ([[4], ["dp"]], 4, Mesh(dp=4)),
        ([[4, 1], ["fsdp", "tp"]], 4, Mesh(fsdp=4)),
        ([[2, 3], ["fsdp", "dp"]], 6, Mesh(dp=3, fsdp=2)),
        ([[2, 2], ["fsdp", "tp"]], 4, Mesh(fsdp=4, tp=2)),
    ],
)
def test_an_accepted_mesh(shape: Any, processes: int, mesh: Mesh) -> None:
    found = check_mesh(shape, processes)
    assert found == mesh
    assert found.splits == (mesh.fsdp > 1)


@pytest.mark.parametrize(
    ("shape", "processes", "parts"),
    [
        ([[4], ["fsdp"]], 1, ("takes 4 = 4 training processes, but this is one process", "model.mesh_shape=null")),
        ([[2, 3], ["dp", "fsdp"]], 4, ("2 x 3 = 6", "there are 4 processes", "[[4], [fsdp]]")),
    ],
)
def test_a_refused_mesh(shape: Any, processes: int, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_mesh(shape, processes)
    for part in ("model.mesh_shape", *parts):
        assert part in str(refused.value)


SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size")


@pytest.mark.parametrize(
    ("shape", "flat", "given", "made"),
    [
        ("[[2,2],[fsdp,tp]]", [[4], ["fsdp"]], (8, 4, None, None), (4, 4, None, None)),
        ("[[2,2],[tp,fsdp]]", [[4], ["fsdp"]], (8, 3, 3, None), (4, 3, 3, None)),
        ("[[2,2],[fsdp,tp]]", [[4], ["fsdp"]], (8, 4, None, 64), (4, 4, None, 64)),
        ("[[2,2],[fsdp,tp]]", [[4], ["fsdp"]], (3, 4, None, None), (3, 2, None, None)),
        ("[[2,2],[fsdp,tp]]", [[4], ["fsdp"]], (3, 4, 8, None), (3, 2, 4, None)),
        ("[[2,2],[fsdp,tp]]", [[4], ["fsdp"]], (3, 4, None, 48), (3, 2, None, 48)),
        ("[[1,2],[fsdp,tp]]", [[2], ["fsdp"]], (8, 1, None, None), (4, 1, None, None)),
        ("[[4],[tp]]", [[4], ["fsdp"]], (6, 2, None, None), (3, 1, None, None)),
        ("[[3,2,2],[tp,dp,fsdp]]", [[2, 6], ["dp", "fsdp"]], (6, 1, None, None), (2, 1, None, None)),
        ("[[2,2],[dp,tp]]", [[2, 2], ["dp", "fsdp"]], (2, 1, None, None), (1, 1, None, None)),
        ("[[4,1],[fsdp,tp]]", [[4, 1], ["fsdp", "tp"]], (3, 1, None, None), (3, 1, None, None)),
    ],
)
def test_tp_is_more_shards_and_the_batch_of_a_step_stays(
    tmp_path: Path, shape: str, flat: Any, given: tuple[int | None, ...], made: tuple[int | None, ...]
) -> None:
    """The rows of a step: given, for each of the processes without tp; made, for all."""
    words = [f"training.{name}={size}" for name, size in zip(SIZES, given, strict=True) if size is not None]
    composed = compose([f"model.mesh_shape={shape}", *words, "training.num_generations=2"])
    assert composed.config.model.mesh_shape == flat
    assert tuple(getattr(composed.config.training, name) for name in SIZES) == made
    notes = [note for note in composed.notes if "TRL's trainer samples different completions" in note]
    changed = [
        f"training.{name}={new} (was {old})" for name, old, new in zip(SIZES, given, made, strict=True) if old != new
    ]
    assert len(notes) == bool(changed)
    assert all(text in notes[0] for text in changed)
    stored = tmp_path / "config.yaml"
    stored.write_text(to_yaml(composed.config), encoding="utf-8")
    assert compose(recipe=stored).config == composed.config  # as a launcher's processes read it


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("per_device_train_batch_size=3 gradient_accumulation_steps=1", ("gradient_accumulation_steps=1 would",)),
        ("per_device_train_batch_size=3 gradient_accumulation_steps=2 steps_per_generation=3", ("generation=3 would",)),
        ("per_device_train_batch_size=3 gradient_accumulation_steps=2 generation_batch_size=18", ("size=18 would",)),
    ],
)
def test_a_batch_that_cannot_be_divided_is_refused(words: str, parts: tuple[str, ...]) -> None:
    shape, groups = "model.mesh_shape=[[2,2],[fsdp,tp]]", "training.num_generations=2"
    with pytest.raises(ConfigError) as refused:
        compose([shape, groups, *words.split()])
    for part in ("[[4], [fsdp]]", "per_device_train_batch_size=3 is no multiple of 2", *parts):
        assert part in str(refused.value)
    (advice,) = re.findall(r"Set (training\.\S+),", str(refused.value))
    more = () if "generation_batch_size" not in words else ("generation_batch_size=24",)
    assert compose([shape, groups, *words.split(), advice, *more]).config.training.per_device_train_batch_size == 3


def test_a_mesh_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["model.mesh_shape=[[2],[fsdp]]"]).config
    with pytest.raises(ConfigError, match="this is one process"):
        Processes.join(config)
    starter = compose(["model=starter"]).config
    monkeypatch.setenv("PARALLELISM_CONFIG_TP_SIZE", "2")  # as accelerate's launcher sets it from its config
    with pytest.raises(ConfigError, match="parallelism_config_tp_size is 2"):
        Processes.join(starter)
    monkeypatch.delenv("PARALLELISM_CONFIG_TP_SIZE")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigError, match="deepspeed"):
        Processes.join(starter)


def test_the_arguments_of_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    assert mesh_arguments(Mesh(dp=4), fsdp_set=False) == {}
    found = mesh_arguments(Mesh(dp=2, fsdp=4), fsdp_set=False)
    layout = found["parallelism_config"]
    assert (layout.dp_replicate_size, layout.dp_shard_size, layout.tp_size, layout.total_size) == (2, 4, 1, 8)
    assert found["fsdp"] is True
    assert found["fsdp_config"]["version"] == 2
    assert "fsdp_config" not in mesh_arguments(Mesh(fsdp=4), fsdp_set=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(ConfigError, match="fsdp_version: 2"):
        mesh_arguments(Mesh(fsdp=4), fsdp_set=True)


@pytest.mark.slow
def test_a_step_on_the_seeds_mesh_is_that_of_two_processes(tiny_model: str, tmp_path: Path) -> None:
    """On given completions: gradient, weights and loss; each of four processes has a quarter of the weights."""
    run_two("mesh_processes.py", tiny_model, tmp_path / "two", folder=tmp_path / "two")
    mesh = "model.mesh_shape=[[2,2],[fsdp,tp]]"
    run_two("mesh_processes.py", tiny_model, tmp_path / "mesh", mesh, folder=tmp_path / "mesh", processes=4)
    for name in CASES:
        two, four = (torch.load(tmp_path / of / f"{name}.pt", weights_only=True) for of in ("two", "mesh"))
        assert_same_gradient(four["gradient"], two["gradient"])
        for part, tensor in two["weights"].items():
            assert torch.allclose(four["weights"][part], tensor, rtol=0, atol=1e-6), part
        for figure in ("loss", "reward", "grad_norm"):
            assert four["row"][figure] == pytest.approx(two["row"][figure], abs=1e-6), figure
        assert sum(four["local"].values()) == pytest.approx(sum(two["local"].values()) / 4, rel=0.05)


@pytest.mark.slow
def test_the_seeds_mesh_trains(tiny_model: str, tmp_path: Path) -> None:
    words = (
        *("covey", "train", "model=starter", f"model.name={tiny_model}", "model.mesh_shape=[[2,2],[fsdp,tp]]"),
        *("training.per_device_train_batch_size=4", "training.num_generations=4", "training.max_completion_length=6"),
        *("training.gradient_accumulation_steps=1", "training.max_steps=2", "evaluation.every_steps=0"),
        *(f"output_dir={tmp_path}", "run_name=run"),
    )
    printed = run_two(*words, folder=tmp_path / "log", processes=4)
    assert printed.count("TRL's trainer samples different completions") == 1
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert config["model"]["mesh_shape"] == [[4], ["fsdp"]]
    assert config["training"]["per_device_train_batch_size"] == 2
    assert {row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "train/grad_norm" in row} == {
        1,
        2,
    }
    assert (tmp_path / "run" / "final_model" / "model.safetensors").is_file()


def test_merging_needs_whole_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*words: str) -> list[str]:
        return check_supported(compose(["model=starter", "model.lora.rank=4", "model.lora.merge=true", *words]).config)

    assert isinstance(check(), list)
    with pytest.raises(ConfigError, match="covey export"):
        check("model.mesh_shape=[[2],[fsdp]]")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    assert isinstance(check(), list)
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    with pytest.raises(ConfigError, match="accelerate config"):
        check()


@pytest.mark.parametrize("shards", [True, False])
def test_a_checkpoint_of_the_other_layout(tmp_path: Path, shards: bool) -> None:
    checkpoint = tmp_path / "checkpoint-3"
    checkpoint.mkdir()
    if not shards:
        (checkpoint / "pytorch_model_fsdp.bin").touch()
    check_layout(checkpoint, shards=not shards)
    with pytest.raises(RunDirectoryError, match=f"model.name={checkpoint}"):
        check_layout(checkpoint, shards=shards)


def test_a_checkpoint_of_two_processes_does_not_resume_exactly_in_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_progress(tmp_path, 0, SAVED)
    assert load_progress(tmp_path, 0, torch.device("cpu")) == SAVED
    save_progress(tmp_path, 1, SAVED)
    assert load_progress(tmp_path, 0, torch.device("cpu")) is None
    assert "not exactly" in caplog.text


def test_a_single_process() -> None:
    alone = Processes()
    assert alone.is_main
    assert alone.agree_on({"a": 1}) == {"a": 1}
    assert alone.gather(3) == [3]
    assert alone.any_signal(None) is None
    assert alone.any_signal(15) == 15
    with pytest.raises(ConfigError, match="mine") as refused, alone.ending_together(), alone.all_or_none():
        raise ConfigError("mine")
    assert refused.value.reported_here


def test_which_process_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert is_main()
    assert process_label() == ""
    monkeypatch.setenv("RANK", "3")
    assert not is_main()
    assert process_label().startswith("process 3 on ")


@pytest.mark.parametrize("alone", [True, False])
def test_a_second_ctrl_c_interrupts_but_a_forwarded_one_does_not(alone: bool) -> None:
    signals: list[int] = []
    request = StopRequest(signals.append, alone=alone)
    request(signal.SIGTERM, None)
    request(signal.SIGTERM, None)  # schedulers repeat signals
    assert signals == [signal.SIGTERM]
    if alone:
        with pytest.raises(KeyboardInterrupt):
            request(signal.SIGINT, None)
    else:
        request(signal.SIGINT, None)  # from torchrun, right after the terminal's
    assert signals == [signal.SIGTERM]
