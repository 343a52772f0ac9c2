"""The settings of MaxEnt, and what it requires of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from covey.config.groups.base import option
from covey.config.groups.objective.base import ObjectiveSettings
from covey.config.values import BadKeyError, show

LengthReduction = Literal["sum", "mean"]

LENGTH_FORMS: Mapping[str, LengthReduction] = MappingProxyType(
    {"grpo": "mean", "luspo": "sum", "dr_grpo": "sum", "dapo": "sum"}
)
"""The losses that support MaxEnt, and how they reduce over the tokens of a completion: at equal weights, `sum` losses
have the gradient of Σ_t log π, and `mean` losses that of Σ_t log π / |o|. Other losses have a normaliser that depends
on the micro-batch, or weigh positive and negative advantages differently."""


FITS = ("mle", "listwise")


@dataclass(frozen=True, kw_only=True)
class MaxEntSettings(ObjectiveSettings):
    """The settings of MaxEnt."""

    NAME: ClassVar[str] = "maxent"

    tau: float = option(0.3, low=0)
    """Entropy weight τ: the larger, the more evenly the target spreads over a group."""
    q_temperature: float = option(1.0, above=0)
    """Temperature of the softmax that turns a group's rewards into the distribution q."""
    q_epsilon: float = option(1e-6, low=0)
    """Lower bound of q for each completion; times the group size it must be below 1."""
    length_normalize_ref: bool = option(True, live="training.beta != 0")
    """Whether the reference model's log-prob of a completion is the mean over its tokens instead of the sum."""
    fit: str = option("listwise", choices=FITS)
    """How the target is fitted: weighted maximum likelihood (`mle`), or cross-entropy with the policy's own
    distribution over the group (`listwise`)."""

    def check_run(
        self, *, loss_type: str, num_generations: int, max_completion_length: int | None, beta: float | None = None
    ) -> None:
        """Check that the loss supports MaxEnt, and that the floor under q leaves room for q."""
        if loss_type not in LENGTH_FORMS:
            raise BadKeyError(
                "training.loss_type",
                f"={loss_type} does not work with objective=maxent: choose grpo (a completion counts by its mean "
                "per token) or luspo, dr_grpo or dapo (by its sum).",
            )
        if (problem := floor_problem(self.q_epsilon, num_generations)) is not None:
            raise BadKeyError("objective.maxent_q_epsilon", problem)


def floor_problem(epsilon: float, group_size: int) -> str | None:
    """Why ε cannot be the least probability of each completion of a group, after its name; None if it can."""
    if epsilon * group_size < 1:
        return None
    return (
        f"={show(epsilon)} is too large for groups of {group_size} completions: as the least probability of each it "
        f"adds up to {epsilon * group_size:g}, and must stay below 1. It must be below 1/{group_size} = "
        f"{1 / group_size:.4g}, such as 1e-6."
    )
