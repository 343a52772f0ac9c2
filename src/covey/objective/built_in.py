"""What Covey's own objectives share."""

from __future__ import annotations

from typing import Self

from covey.config.groups.objective.base import ObjectiveSettings
from covey.objective.interface import Objective


class BuiltIn(ObjectiveSettings, Objective):
    """An objective whose settings check the run."""

    def for_run(
        self,
        *,
        loss_type: str,
        num_generations: int,
        max_completion_length: int | None = None,
        beta: float | None = None,
    ) -> Self:
        """This objective, after checking that the run supports it."""
        self.check_run(
            loss_type=loss_type, num_generations=num_generations, max_completion_length=max_completion_length, beta=beta
        )
        return self
