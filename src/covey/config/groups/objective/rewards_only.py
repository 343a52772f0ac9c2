"""The settings of objectives that need rewards alone: Dr. GRPO, MaxRL, pass@k and quantile baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from covey.config.groups.base import option
from covey.config.groups.objective.base import LinearSettings, ObjectiveSettings
from covey.config.values import BadKeyError


@dataclass(frozen=True, kw_only=True)
class DrGRPOSettings(ObjectiveSettings):
    """Dr. GRPO has no settings of its own."""

    NAME: ClassVar[str] = "dr_grpo"

    def check_run(
        self, *, loss_type: str, num_generations: int, max_completion_length: int | None, beta: float | None = None
    ) -> None:
        """Check that the loss is its own."""
        if loss_type != "dr_grpo":
            raise BadKeyError(
                "training.loss_type",
                f"={loss_type} is not Dr. GRPO, whose loss is dr_grpo: set training.loss_type=dr_grpo, or choose "
                "objective=grpo with training.scale_rewards=none, which has the same advantages under any loss.",
            )


@dataclass(frozen=True, kw_only=True)
class MaxRLSettings(LinearSettings):
    """MaxRL has no settings of its own."""

    NAME: ClassVar[str] = "maxrl"


@dataclass(frozen=True, kw_only=True)
class PassKSettings(LinearSettings):
    """The settings of pass@k policy optimisation."""

    NAME: ClassVar[str] = "passk"

    k: int = option(2, low=1)
    """The k of pass@k, below `training.num_generations`; 1 is the mean reward."""

    def check_run(
        self, *, loss_type: str, num_generations: int, max_completion_length: int | None, beta: float | None = None
    ) -> None:
        """Check the loss, and that a group has more than k completions."""
        super().check_run(
            loss_type=loss_type, num_generations=num_generations, max_completion_length=max_completion_length
        )
        if self.k >= num_generations:
            raise BadKeyError(
                "objective.passk_k",
                f"={self.k} must be below training.num_generations={num_generations}: with all completions of a group "
                "in one subset, each contributes the same, and no advantage is left.",
            )


@dataclass(frozen=True, kw_only=True)
class QuantileSettings(LinearSettings):
    """The settings of quantile baselines."""

    NAME: ClassVar[str] = "quantile"

    level: float = option(0.4, above=0, high=1)
    """The level K of the baseline, a quantile of the group's rewards: with a share of right answers of at most 1 - K
    only these count, above it only the wrong ones."""
