"""What the objective asks of the rest of the config, checked without importing torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey.config.training import TrainingConfig
from covey.config.values import BadKeyError, show

if TYPE_CHECKING:
    from covey.config.schema import ObjectiveConfig

MAXENT_LOSSES = ("grpo", "luspo", "dr_grpo", "dapo")
"""The values of `training.loss_type` that can carry `objective=maxent`."""


def check_objective(objective: ObjectiveConfig, training: TrainingConfig) -> None:
    """Check that objective, loss, group size and reference go together.

    Raises:
        BadKeyError: naming the key and what would work.
    """
    if objective.name == "maxent":
        _check_maxent(objective, training)
    if training.beta == 0:
        _check_needs_no_reference(objective)


def _check_maxent(objective: ObjectiveConfig, training: TrainingConfig) -> None:
    if training.loss_type not in MAXENT_LOSSES:
        raise BadKeyError(
            "training.loss_type",
            f"={training.loss_type} cannot carry objective=maxent: choose grpo (a completion counts by its mean per "
            "token) or luspo, dr_grpo or dapo (by its sum).",
        )
    group, epsilon = training.num_generations, objective.maxent_q_epsilon
    if group is not None and group * epsilon >= 1:
        raise BadKeyError(
            "objective.maxent_q_epsilon",
            f"={show(epsilon)} is too large: as the least probability of each of training.num_generations={group} "
            f"completions it adds up to {group * epsilon:g}, and must stay below 1. Anything below 1/{group} = "
            f"{1 / group:.4g} works, such as 1e-6.",
        )


def _check_needs_no_reference(objective: ObjectiveConfig) -> None:
    works = "set training.beta above 0, such as 0.04"
    if objective.kl.controller == "adaptive":
        raise BadKeyError(
            "objective.kl.controller",
            f"=adaptive holds the KL divergence from the reference model at a target, but with training.beta=0 there "
            f"is no reference model, and β could not move: {works}, where β starts, or choose "
            "objective.kl.controller=fixed.",
        )
    if objective.kl.stop_above is not None:
        raise BadKeyError(
            "objective.kl.stop_above",
            f"={show(objective.kl.stop_above)} limits the KL divergence from the reference model, but with "
            f"training.beta=0 there is no reference model: {works}, or leave stop_above out.",
        )
