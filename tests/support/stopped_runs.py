"""Short runs that are stopped and resumed, and their comparison with an uninterrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from covey import GRPOTrainer
from trainers import build_trainer

STEPS = 7  # six prompts, two a generation batch: the run goes through several passes over the data

ACCUMULATED: dict[str, Any] = {"gradient_accumulation_steps": 2}
REUSED: dict[str, Any] = {"num_iterations": 2, "steps_per_generation": 2, "gradient_accumulation_steps": 1}
SPARSE_LOGS: dict[str, Any] = {"gradient_accumulation_steps": 2, "logging_steps": 3, "beta": 0.05}
MOVING_REFERENCE: dict[str, Any] = {
    **{"beta": 0.5, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.6},
    "gradient_accumulation_steps": 1,
}
IN_ORDER: dict[str, Any] = {
    **{"shuffle_dataset": False, "gradient_accumulation_steps": 1},
    **{"per_device_train_batch_size": 8, "steps_per_generation": 2},
}
"""Four of six prompts in a generation batch: two are left over in the first pass."""
TRUNCATED: dict[str, Any] = {
    **REUSED,
    **{"top_k": 5, "top_p": 0.8, "temperature": 0.7, "repetition_penalty": 1.2},
    "more": {"sampler_gap": True},
}
"""Micro-batches that are still to be trained on hold the sampler's support and penalty."""


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


def assert_resume_is_exact(tiny_model: str, folder: Path, settings: dict[str, Any], stops: tuple[int, ...]) -> None:
    """Weights, moments, scheduler, random state, metrics and completions, bit for bit, after each of the stops."""
    straight = run(tiny_model, folder / "straight", settings, None, None)
    expected = contents(folder / "straight" / f"checkpoint-{STEPS}")
    for stop in stops:
        stopped = folder / f"stopped-{stop}"
        first = run(tiny_model, stopped, settings, stop, None)
        assert first.state.global_step == stop
        second = run(tiny_model, stopped, settings, None, stopped / f"checkpoint-{stop}")

        found = contents(stopped / f"checkpoint-{STEPS}")
        for part in ("weights", "moments"):
            assert found[part].keys() == expected[part].keys()
            for name, tensor in expected[part].items():
                assert torch.equal(found[part][name], tensor), f"{part} {name} after a stop at step {stop}"
        assert found["scheduler"] == expected["scheduler"]
        assert torch.equal(found["random"], expected["random"])
        assert logged(second) == logged(straight)
        assert second.latest_completions == straight.latest_completions
