"""What the settings of every built-in objective derive from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from covey.config.values import BadKeyError

LINEAR_LOSSES = ("grpo", "luspo", "dr_grpo", "dapo", "cispo")
"""TRL's losses that carry advantages as they are: the gradient is linear in them, and all completions of a generation
batch share one normaliser."""

NOT_LINEAR = {
    "bnpo": "divides by the tokens of each micro-batch, so a completion's weight depends on its neighbours",
    "sapo": "treats positive and negative advantages differently",
    "vespo": "treats positive and negative advantages differently",
}
"""TRL's other losses, and why they do not."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The settings of a built-in objective: a field `x` made by `option` is the key `objective.<name>_x`.

    The objective's own class derives from the same dataclass, so a setting is declared once.
    """

    NAME: ClassVar[str] = "grpo"
    """What `objective.name` calls it."""

    def check_run(
        self, *, loss_type: str, num_generations: int, max_completion_length: int | None, beta: float | None = None
    ) -> None:
        """Check that a run can have this objective with these settings.

        Args:
            loss_type: of TRL's loss.
            num_generations: completions per prompt.
            max_completion_length: in tokens.
            beta: weight of the KL divergence at the start; None if it is not known.

        Raises:
            BadKeyError: naming the key and what would work.
        """


@dataclass(frozen=True, kw_only=True)
class LinearSettings(ObjectiveSettings):
    """The settings of an objective that only reweighs advantages."""

    def check_run(
        self, *, loss_type: str, num_generations: int, max_completion_length: int | None, beta: float | None = None
    ) -> None:
        """Check that the loss is linear in the advantages."""
        if loss_type not in LINEAR_LOSSES:
            why = NOT_LINEAR.get(loss_type, "is not known to carry advantages as they are")
            raise BadKeyError(
                "training.loss_type",
                f"={loss_type} does not work with objective={self.NAME}: that loss {why}. Choose "
                f"{', '.join(LINEAR_LOSSES[:-1])} or {LINEAR_LOSSES[-1]}.",
            )
