"""Objectives by name: the registry, their settings in the config, and what the trainer takes of them."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.config import Config, DatasetConfig, ObjectiveConfig, TrainingConfig
from covey.config.groups.objectives import SETTINGS
from covey.errors import ConfigError
from covey.objective import GRPO, REGISTRY, MaxEnt, make
from covey.objective.interface import check_objective
from covey.training.advantages import objective_arguments


def config(training: dict[str, Any], **objective: Any) -> Config:
    return Config(
        dataset=DatasetConfig(task="arithmetic"),
        objective=ObjectiveConfig(**objective),
        training=TrainingConfig(training),
    )


def test_the_registry_and_the_config_have_the_same_names() -> None:
    assert list(REGISTRY) == list(SETTINGS)
    keys = {item.name for item in fields(ObjectiveConfig)}
    for name, settings in SETTINGS.items():
        for item in fields(settings):
            assert f"{name}_{item.name}" in keys
    assert MaxEnt() == MaxEnt(**{item.name: item.default for item in fields(SETTINGS["maxent"])})


def test_make() -> None:
    assert isinstance(make("grpo"), GRPO)
    assert make("maxent", tau=0.7) == MaxEnt(tau=0.7)
    with pytest.raises(ConfigError, match=r"no objective called ppo\. Covey has grpo, maxent"):
        make("ppo")
    with pytest.raises(ConfigError, match="no setting called temperature"):
        make("maxent", temperature=1.0)
    with pytest.raises(ConfigError, match=r"fit=ranking .* one of mle, listwise"):
        make("maxent", fit="ranking")


def test_the_config_becomes_what_the_trainer_takes() -> None:
    built = objective_arguments(config({"loss_type": "dr_grpo"}, name="maxent", maxent_tau=0.9, maxent_fit="mle"))
    assert built["objective"] == MaxEnt(tau=0.9, fit="mle", length_form="sum")
    assert built["kl_controller"] is None
    assert isinstance(objective_arguments(config({}))["objective"], GRPO)


@pytest.mark.parametrize("loss_type", ["bnpo", "cispo", "sapo", "vespo"])
def test_losses_that_cannot_carry_maxent(loss_type: str) -> None:
    with pytest.raises(ConfigError, match=r"does not work with.*choose.*luspo, dr_grpo or dapo"):
        config({"loss_type": loss_type}, name="maxent")
    with pytest.raises(ConfigError, match=r"does not work with.*choose.*luspo, dr_grpo or dapo"):
        MaxEnt().for_run(loss_type=loss_type, num_generations=8, max_completion_length=8)
    assert config({"loss_type": loss_type}).training.loss_type == loss_type  # GRPO supports them all


def test_a_floor_too_large_for_the_group() -> None:
    with pytest.raises(ConfigError, match=r"maxent_q_epsilon=0.125 is too large.*below 1/8 = 0.125, such"):
        config({"num_generations": 8, "loss_type": "grpo"}, name="maxent", maxent_q_epsilon=0.125)
    with pytest.raises(ConfigError, match="must be below 1/8"):
        MaxEnt(q_epsilon=0.125).for_run(loss_type="grpo", num_generations=8, max_completion_length=8)
    assert config({"num_generations": 8, "loss_type": "grpo"}, name="maxent", maxent_q_epsilon=0.12)


def test_the_example_of_the_docs_is_leave_one_out(root: Path) -> None:
    """(1, 0, 0, 1) against the mean of the others; and a completion that does not count is in no baseline."""
    text = (root / "docs" / "adding_an_objective.md").read_text(encoding="utf-8")
    example = text.split("```python\n# rloo.py\n")[1].split("```")[0]
    space: dict[str, Any] = {}
    exec(compile(example, "rloo.py", "exec"), space)
    objective = space["RLOO"]()
    check_objective(objective)
    mask = torch.tensor([[True] * 4, [True, True, False, True], [True, False, False, False]])
    rewards = torch.tensor([[1.0, 0, 0, 1], [1.0, 0, math.nan, 1], [1.0, math.nan, math.nan, math.nan]])
    none: dict[str, Any] = {"ref_logps_PG": None, "policy_logps_PG": None, "lengths_PG": mask.int(), "beta": 0.0}
    advantages, _, columns = objective.advantages(rewards, mask, **none)
    assert columns["baseline"][0].tolist() == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1 / 3])
    third = 1 / 3
    expected = torch.tensor([[2 * third, -2 * third, -2 * third, 2 * third], [0.5, -1.0, 0.0, 0.5], [0.0] * 4])
    torch.testing.assert_close(advantages * mask, expected)
    costly = space["RLOO"](cost_per_token=0.1)  # of equal rewards, to 0.9, 0.8, 0.7 and 0.6
    given = {**none, "lengths_PG": torch.tensor([[1, 2, 3, 4]])}
    advantages, _, _ = costly.advantages(torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool), **given)
    assert advantages[0].tolist() == pytest.approx([0.2, 0.2 / 3, -0.2 / 3, -0.2], abs=1e-6)
