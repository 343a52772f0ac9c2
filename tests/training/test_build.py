"""Notes of the trainer's settings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.config import load
from covey.runlog.directory import RunDirectory
from covey.training.build import _idle_gpu, trl_config, used_otherwise


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("asked", [[], ["training.bf16=true"], ["training.bf16=false"]])
def test_training_on_the_cpu_is_in_full_precision_whatever_is_there(
    gpu: bool, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: gpu)
    config = load(["training.use_cpu=true", *asked])
    args, notes = trl_config(config, RunDirectory(tmp_path))
    assert (args.use_cpu, args.bf16, args.fp16) == (True, False, False)
    assert notes[0].startswith(f"{'use_cpu=true' if gpu else 'No GPU here'}: training on the CPU in float32")
    assert ("in place of bf16=true" in notes[0]) == (asked == ["training.bf16=true"])
    assert used_otherwise(config, args) == ([] if asked == ["training.bf16=false"] else ["training.bf16=false"])


def test_numbers_that_are_set_otherwise_are_told(tmp_path: Path) -> None:
    config = load(["training.save_total_limit=1", "evaluation.every_steps=5", "training.push_to_hub=true"])
    args, _ = trl_config(config, RunDirectory(tmp_path))
    wanted = ["training.bf16=false", "training.save_total_limit=2", "training.use_cpu=true"]
    assert used_otherwise(config, args) == wanted


@pytest.mark.parametrize(("rows", "steps", "wanted"), [(8, 1, 8), (4, 3, 18), (16, 2, None), (64, 1, None)])
def test_a_gpu_with_few_completions_is_named_with_a_remedy(rows: int, steps: int, wanted: int | None) -> None:
    """`wanted` accumulation steps make at least 64 completions: 8 x 8, 4 x 18."""
    settings = {
        "per_device_train_batch_size": rows,
        "steps_per_generation": steps,
        "gradient_accumulation_steps": steps,
    }
    notes = _idle_gpu(SimpleNamespace(**settings))
    if wanted is None:
        assert notes == []
    else:
        (note,) = notes
        assert f"training.gradient_accumulation_steps={wanted}," in note
        assert f"generates {rows * steps} completions" in note
