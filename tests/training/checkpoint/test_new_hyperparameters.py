"""A run resumed with another config trains by that config: its learning rates are those of a run that always had it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stopped_runs import logged, run

OLD: dict[str, Any] = {"max_steps": 3, "learning_rate": 1e-2, "lr_scheduler_type": "linear", "warmup_steps": 1}


def groups(run_dir: Path, step: int) -> list[dict[str, Any]]:
    """The hyperparameters that a checkpoint holds."""
    stored = torch.load(run_dir / f"checkpoint-{step}" / "optimizer.pt", weights_only=True)
    return [{name: value for name, value in group.items() if name != "params"} for group in stored["param_groups"]]


@pytest.fixture(scope="module")
def finished(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a linear schedule, stopped after two steps and at its end, where the learning rate is 0."""
    folder = tmp_path_factory.mktemp("finished")
    run(tiny_model, folder, OLD, 2, None)
    run(tiny_model, folder, OLD, None, folder / "checkpoint-2")
    assert groups(folder, 3)[0]["lr"] == 0
    return folder


@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize(
    "new",
    [
        {},
        {"learning_rate": 2e-3},
        {"lr_scheduler_type": "cosine", "warmup_steps": 3},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.2}},
        {"lr_scheduler_type": "constant", "learning_rate": 3e-3},
        {"weight_decay": 0.3, "adam_beta1": 0.5, "adam_beta2": 0.9, "adam_epsilon": 1e-6},
    ],
    ids=["longer", "rate", "cosine", "minimum", "constant", "adam"],
)
def test_learning_rates_and_hyperparameters_are_those_of_the_new_config(
    tiny_model: str, tmp_path: Path, finished: Path, step: int, new: dict[str, Any]
) -> None:
    settings = {**OLD, "max_steps": 5, **new}
    straight = run(tiny_model, tmp_path / "straight", settings, None, None)
    resumed = run(tiny_model, tmp_path / "resumed", settings, None, finished / f"checkpoint-{step}")
    rates, expected = ([row["learning_rate"] for row in logged(one)] for one in (resumed, straight))
    assert len(expected) == 5
    assert rates[step:] == expected[step:]
    assert groups(tmp_path / "resumed", 5) == groups(tmp_path / "straight", 5)


def test_moments_are_kept_and_the_first_step_is_at_the_new_rate(
    tiny_model: str, tmp_path: Path, finished: Path
) -> None:
    """With a thousandth of the rate, the step is a thousandth too."""
    start, moved = load_file(finished / "checkpoint-3" / "model.safetensors"), []
    for rate in (1e-3, 1e-6):
        settings = {**OLD, "max_steps": 4, "learning_rate": rate, "lr_scheduler_type": "constant"}
        trainer = run(tiny_model, tmp_path / str(rate), settings, None, finished / "checkpoint-3")
        after = dict(trainer.model.named_parameters())
        moved.append(torch.cat([(after[name] - one).double().flatten() for name, one in start.items()]).norm().item())
        stored = torch.load(tmp_path / str(rate) / "checkpoint-4" / "optimizer.pt", weights_only=True)
        assert {int(state["step"]) for state in stored["state"].values()} == {4}
    assert moved[0] > 0
    assert moved[1] / moved[0] == pytest.approx(1e-3, rel=0.05)


def test_without_its_optimiser_a_run_goes_on_where_its_schedule_is(tiny_model: str, tmp_path: Path) -> None:
    settings = {**OLD, "max_steps": 5, "save_only_model": True}
    straight = run(tiny_model, tmp_path / "straight", settings, None, None)
    run(tiny_model, tmp_path / "stopped", settings, 2, None)
    resumed = run(tiny_model, tmp_path / "stopped", settings, None, tmp_path / "stopped" / "checkpoint-2")
    rates, expected = ([row["learning_rate"] for row in logged(one)] for one in (resumed, straight))
    assert rates == expected
