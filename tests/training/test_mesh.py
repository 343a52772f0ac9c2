"""Device meshes: which are accepted, which are refused and why, and their arguments for transformers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main_process import is_main, process_label
from covey.config import compose
from covey.config.groups.mesh import Mesh, check_mesh
from covey.errors import ConfigError, RunDirectoryError
from covey.training.checkpoint.state import TrainingProgress, load_progress, save_progress
from covey.training.checks.needs import check_supported
from covey.training.processes import Processes, StopRequest, check_layout, mesh_arguments

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
        ([[2, 2], ["fsdp", "tp"]], 4, ("(tp)", "random numbers", "[[4], [fsdp]]", "vllm_tensor_parallel_size")),
    ],
)
def test_a_refused_mesh(shape: Any, processes: int, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_mesh(shape, processes)
    for part in ("model.mesh_shape", *parts):
        assert part in str(refused.value)


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
    import torch

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
