"""Stopping after any step and going on equals the straight run, bit for bit.

Weights, optimiser moments, scheduler, random states, logged metrics (timings aside) and the completions are compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from covey import GRPOTrainer
from trainers import build_trainer

STEPS = 7  # six prompts, two a generation batch: the run goes through several passes over the data

PLAIN: dict[str, Any] = {"gradient_accumulation_steps": 2}
REUSED: dict[str, Any] = {"num_iterations": 2, "steps_per_generation": 2, "gradient_accumulation_steps": 1}
SPARSE_LOGS: dict[str, Any] = {"gradient_accumulation_steps": 2, "logging_steps": 3, "beta": 0.05}


class StopAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def run(tiny_model: str, folder: Path, settings: dict[str, Any], stop: int | None, resume: Path | None) -> GRPOTrainer:
    trainer = build_trainer(
        GRPOTrainer, tiny_model, folder, prompts=6, **{"max_steps": STEPS, "save_steps": 100, **settings}
    )
    if stop is not None:
        trainer.add_callback(StopAfter(stop))
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return trainer


def logged(trainer: GRPOTrainer) -> list[dict[str, Any]]:
    rows = [row for row in trainer.state.log_history if "loss" in row]
    return [{key: value for key, value in row.items() if "time" not in key} for row in rows]


def contents(checkpoint: Path) -> dict[str, Any]:
    optimizer = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    moments = [moment for state in optimizer["state"].values() for moment in state.values()]
    return {
        "weights": load_file(checkpoint / "model.safetensors"),
        "moments": dict(enumerate(moments)),
        "scheduler": torch.load(checkpoint / "scheduler.pt", weights_only=True),
        "random": torch.load(checkpoint / "rng_state.pth", weights_only=False)["cpu"],
    }


@pytest.mark.parametrize(
    ("settings", "stops"),
    [(PLAIN, (1, 3)), (REUSED, (1, 2, 5)), (SPARSE_LOGS, (2, 4))],
    ids=["accumulation", "reused-generations", "sparse-logs-and-kl"],
)
def test_stop_and_go_equals_the_straight_run(
    tiny_model: str, tmp_path: Path, settings: dict[str, Any], stops: tuple[int, ...]
) -> None:
    straight = run(tiny_model, tmp_path / "straight", settings, None, None)
    expected = contents(tmp_path / "straight" / f"checkpoint-{STEPS}")
    for stop in stops:
        folder = tmp_path / f"stopped-{stop}"
        first = run(tiny_model, folder, settings, stop, None)
        assert first.state.global_step == stop
        second = run(tiny_model, folder, settings, None, folder / f"checkpoint-{stop}")

        found = contents(folder / f"checkpoint-{STEPS}")
        for part in ("weights", "moments"):
            assert found[part].keys() == expected[part].keys()
            for name, tensor in expected[part].items():
                assert torch.equal(found[part][name], tensor), f"{part} {name} after a stop at step {stop}"
        assert found["scheduler"] == expected["scheduler"]
        assert torch.equal(found["random"], expected["random"])
        assert logged(second) == logged(straight)
        assert second.latest_completions == straight.latest_completions


def test_the_straight_run_moves_the_weights(tiny_model: str, tmp_path: Path) -> None:
    """Otherwise the equalities above would say nothing."""
    trainer = run(tiny_model, tmp_path, PLAIN, None, None)
    before = load_file(Path(tiny_model) / "model.safetensors")
    after = load_file(tmp_path / f"checkpoint-{STEPS}" / "model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert len({row["loss"] for row in logged(trainer)}) > 1
    assert len({json.dumps(row["reward"]) for row in logged(trainer)}) > 1
