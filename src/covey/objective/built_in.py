"""What Covey's own objectives share."""

from __future__ import annotations

from dataclasses import fields
from typing import Self

from covey.config.groups.base import check_option
from covey.config.groups.objective.base import ObjectiveSettings
from covey.objective.interface import Objective


class BuiltIn(ObjectiveSettings, Objective):
    """An objective whose settings are within their bounds, and check the run."""

    def __post_init__(self) -> None:
        for item in fields(self):
            check_option(f"{type(self).__name__}: {item.name}", getattr(self, item.name), item)

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
