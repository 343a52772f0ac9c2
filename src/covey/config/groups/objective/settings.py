"""The group `objective`: how rewards become advantages, and what that requires of the rest of the config."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from covey.config.groups.base import Group, option
from covey.config.groups.objective.kl import KLConfig
from covey.config.groups.training import TrainingConfig
from covey.config.values import BadKeyError, show

NAMES = ("grpo", "maxent")
"""The objectives that come with Covey; a field `<name>_<setting>` belongs to one of them."""

MAXENT_LOSSES = ("grpo", "luspo", "dr_grpo", "dapo")
"""The values of `training.loss_type` that work with `objective=maxent`."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Group):
    """How the rewards of a group become advantages."""

    PREFIX: ClassVar[str] = "objective."

    name: str = option("grpo", choices=NAMES)
    """`grpo` leaves TRL's own advantages as they are; `maxent` fits the policy to a maximum-entropy target."""
    maxent_tau: float = option(0.3, low=0)
    """Entropy weight τ: the larger, the more evenly the target spreads over a group."""
    maxent_q_temperature: float = option(1.0, above=0)
    """Temperature of the softmax that turns a group's rewards into the distribution q."""
    maxent_q_epsilon: float = option(1e-6, low=0)
    """Lower bound of q for each completion; times the group size it must be below 1."""
    maxent_length_normalize_ref: bool = True
    """Whether the reference model's log-prob of a completion is the mean over its tokens instead of the sum."""
    maxent_fit: str = option("listwise", choices=("mle", "listwise"))
    """How the target is fitted: weighted maximum likelihood (`mle`), or cross-entropy with the policy's own
    distribution over the group (`listwise`)."""
    resample_groups: int = option(0, low=0)
    """Most further prompts drawn for one generation batch to replace groups whose rewards are all equal, which give no
    gradient (DAPO's dynamic sampling); 0 keeps every group."""
    kl: KLConfig = field(default_factory=KLConfig)
    """Control of the weight β of the KL divergence, which starts at `training.beta`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for item in fields(self):
            owner = item.name.partition("_")[0]
            if owner in NAMES and owner != self.name and getattr(self, item.name) != item.default:
                raise BadKeyError(
                    f"objective.{item.name}",
                    f"={show(getattr(self, item.name))} belongs to objective={owner}, and this run has "
                    f"objective.name={self.name}: choose objective={owner}, or leave it out.",
                )


def check_objective(objective: ObjectiveConfig, training: TrainingConfig) -> None:
    """Check that objective, loss, group size and reference model are compatible.

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
            f"={training.loss_type} does not work with objective=maxent: choose grpo (a completion counts by its mean "
            "per token) or luspo, dr_grpo or dapo (by its sum).",
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
