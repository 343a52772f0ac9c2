"""Notes of the trainer's settings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from covey.training.build import _idle_gpu


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
