"""What a run does whose vLLM was to have a GPU of its own and shares one: TRL's arguments, notes, and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.config import load
from covey.model import memory
from covey.model.memory import beside_vllm
from covey.runlog.directory import RunDirectory
from covey.training.build import trl_config
from covey.training.checks import needs

OLD = ("training.use_vllm=true", "vllm_device=auto", "vllm_gpu_memory_utilization=0.9", "model=starter")


def test_trl_gets_a_share_that_leaves_room_for_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def share(*words: str) -> float:
        args, _ = trl_config(load([*OLD, "training.report_to=none", *words]), RunDirectory(tmp_path / "run"))
        return float(args.vllm_gpu_memory_utilization)

    assert share() == 0.3
    assert share("training.vllm_mode=colocate") == 0.9
    assert share("training.vllm_mode=server") == 0.9
    monkeypatch.setattr(needs, "check_vllm", lambda: None)
    assert "vllm_gpu_memory_utilization=0.9 was meant for that GPU" in "".join(needs.check_supported(load(OLD)))


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("training.vllm_mode=colocate",), 8.0),
        ((), 56.0),
        (("training.vllm_mode=server",), 80.0),
        (("training.vllm_mode=colocate", "training.vllm_enable_sleep_mode=true"), 80.0),
        (("training.use_vllm=false",), 80.0),
    ],
)
def test_training_has_the_memory_that_vllm_leaves(
    words: tuple[str, ...], left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_trains_on_gpu", lambda training: True)
    available, device, advice = beside_vllm(load([*OLD, *words]), 80_000_000_000, "a GPU")
    assert available == pytest.approx(left * 1e9)
    assert ("training.vllm_mode=server" in advice and "vllm_gpu_memory_utilization" in advice) == (left < 80)
    assert device.startswith("a GPU")
