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

from covey.training.checkpoint.progress import TrainingProgress
from covey.training.microbatch.microbatch_split import RowShape, plan_chunks
from stopped_runs import ACCUMULATED, REUSED, SPARSE_LOGS, STEPS, TRUNCATED, assert_resume_is_exact, logged, run


@pytest.mark.parametrize(
    ("settings", "stops"),
    [(ACCUMULATED, (1, 3)), (REUSED, (1, 2, 5)), (SPARSE_LOGS, (2, 4)), (TRUNCATED, (1, 2))],
    ids=["accumulation", "reused-generations", "sparse-logs-and-kl", "truncated-sampling"],
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


def test_names_in_checkpoints_stay() -> None:
    """Runs of earlier versions are resumed by these names."""
    assert {field.name for field in fields(TrainingProgress)} == {
        *("micro_step", "passes_done", "buffered_inputs", "pending_metrics", "completion_log", "step_time"),
        *("loss_since_log", "loss_total", "last_logged_step", "beta", "prompt_cursor"),
        *("objective_columns", "objective_state", "sampler_gap", "rollouts"),
    }
    row = RowShape(1, 1, 1, True, 0)
    assert plan_chunks([[[row]]], [row], 0, weights=[1.0]).state().keys() == {
        *("ends", "weights", "stand_ins", "widths", "tokens", "rows", "most_rows", "all_tokens", "all_rows"),
    }
