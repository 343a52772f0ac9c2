"""A run stopped after any step and resumed equals the straight run, bit for bit.

Weights, optimiser moments, scheduler, random states, logged metrics (timings aside) and the completions are compared.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from covey.errors import RunDirectoryError
from covey.training.checkpoint.state import TrainingProgress
from covey.training.chunks import RowShape, plan_chunks
from stopped_runs import (
    ACCUMULATED,
    IN_ORDER,
    MOVING_REFERENCE,
    REUSED,
    SPARSE_LOGS,
    STEPS,
    TRUNCATED,
    assert_resume_is_exact,
    logged,
    run,
)
from trainers import variety


@pytest.mark.parametrize(
    ("settings", "stops"),
    [
        (ACCUMULATED, (1, 3)),
        (REUSED, (1, 2, 5)),
        (SPARSE_LOGS, (2, 4)),
        (TRUNCATED, (1, 2)),
        (MOVING_REFERENCE, (3,)),
        (IN_ORDER, (2, 3)),
    ],
    ids=[
        "accumulation",
        "reused-generations",
        "sparse-logs-and-kl",
        "truncated-sampling",
        "moving-reference",
        "in-order",
    ],
)
def test_a_resumed_run_equals_the_straight_run(
    tiny_model: str, tmp_path: Path, settings: dict[str, Any], stops: tuple[int, ...]
) -> None:
    assert_resume_is_exact(tiny_model, tmp_path, settings, stops)


def test_the_straight_run_moves_the_weights(tiny_model: str, tmp_path: Path) -> None:
    """Otherwise the equalities above would be trivial."""
    trainer = run(tiny_model, tmp_path, ACCUMULATED, None, None)
    before = load_file(Path(tiny_model) / "model.safetensors")
    after = load_file(tmp_path / f"checkpoint-{STEPS}" / "model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert len({row["loss"] for row in logged(trainer)}) > 1
    assert len({json.dumps(row["reward"]) for row in logged(trainer)}) > 1


@pytest.mark.parametrize("more", [{}, {"resample_groups": 1}], ids=["plain", "resampling"])
def test_without_shuffling_every_row_is_trained_on(tiny_model: str, tmp_path: Path, more: dict[str, Any]) -> None:
    """Also after a resume: what the reward sees is what is trained on."""
    seen: list[str] = []

    def watched(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        seen.extend(prompt[0]["content"] for prompt in prompts[::4])
        return variety(completions, **columns)

    settings = {**IN_ORDER, "reward": watched, "more": more, "max_steps": 6}
    run(tiny_model, tmp_path, settings, 3, None)  # in the middle of the second of three generation batches
    run(tiny_model, tmp_path, settings, None, tmp_path / "checkpoint-3")
    assert seen == [f"What is {n} + {n}?" for n in (0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5)]


def test_a_moved_reference_stays_where_it_is_once_it_moves_no_more(tiny_model: str, tmp_path: Path) -> None:
    moved = run(tiny_model, tmp_path / "moved", {**MOVING_REFERENCE, "max_steps": 2}, None, None)
    expected = {name: one.clone() for name, one in moved.ref_model.named_parameters()}
    start = load_file(Path(tiny_model) / "model.safetensors")
    assert any(not torch.equal(start[name], one) for name, one in expected.items())
    settings = {**MOVING_REFERENCE, "sync_ref_model": False}
    checkpoint = tmp_path / "moved" / "checkpoint-2"
    for stop in (4, STEPS):  # resumed twice: the checkpoint of a run in which it does not move holds it too
        resumed = run(tiny_model, tmp_path / "still", settings, stop, checkpoint)
        assert all(torch.equal(expected[name], one) for name, one in resumed.ref_model.named_parameters())
        checkpoint = tmp_path / "still" / f"checkpoint-{stop}"


def test_a_checkpoint_without_the_moved_reference_is_reported(
    tiny_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tiny_model, tmp_path, {**MOVING_REFERENCE, "max_steps": 2}, None, None)
    part = tmp_path / "checkpoint-2" / "reference_0.pt"
    part.rename(part.with_name("reference_1.pt"))
    (part.parent / "reference_0.pt").write_bytes(b"")
    with pytest.raises(RunDirectoryError, match="in 2 parts, and this run needs 1"):
        run(tiny_model, tmp_path, MOVING_REFERENCE, None, tmp_path / "checkpoint-2")
    for file in part.parent.glob("reference_*"):
        file.unlink()
    run(tiny_model, tmp_path, MOVING_REFERENCE, None, tmp_path / "checkpoint-2")
    assert "holds no reference model that has moved" in caplog.text


def test_names_in_checkpoints_stay() -> None:
    """Runs of earlier versions are resumed by these names."""
    assert {field.name for field in fields(TrainingProgress)} == {
        *("micro_step", "passes_done", "buffered_inputs", "pending_metrics", "completion_log", "step_time"),
        *("loss_since_log", "loss_total", "last_logged_step", "beta", "prompt_cursor"),
        *("objective_columns", "objective_state", "sampler_gap", "rollouts", "tokens"),
    }
    row = RowShape(1, 1, 1, True, 0)
    assert plan_chunks([[[row]]], [row], 0, weights=[1.0]).state().keys() == {
        *("ends", "weights", "stand_ins", "widths", "tokens", "rows", "most_rows", "all_tokens", "all_rows"),
    }
