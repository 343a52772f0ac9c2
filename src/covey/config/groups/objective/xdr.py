"""The settings of xDr.GRPO, and what it requires of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from covey.config.groups.base import option
from covey.config.groups.objective.base import ObjectiveSettings
from covey.config.values import BadKeyError, show

LOSSES = ("dr_grpo", "grpo")


@dataclass(frozen=True, kw_only=True)
class XDRSettings(ObjectiveSettings):
    """The settings of xDr.GRPO."""

    NAME: ClassVar[str] = "xdr"

    tau: float = option(0.05, low=0)
    """Temperature τ of the weights, in units of utility (advantage times length share): `inf` is Dr. GRPO, 0 leaves
    the best completions alone. Not portable between tasks: see `log_odds` in the metrics."""
    reference: float = option(0.0, low=0)
    """Weight λ of the reference model in the weights; above 0 it needs `training.beta` above 0, whose KL term stays."""
    adaptive: bool = False
    """Whether τ is divided by log(1 + distinct right modes) in each group; needs a grader that names modes."""
    keep_prompt_weight: bool = False
    """Whether the advantages of a group keep the sum of magnitudes that they have under Dr. GRPO."""

    def check_run(
        self, *, loss_type: str, num_generations: int, max_completion_length: int | None, beta: float | None = None
    ) -> None:
        """Check the loss, whose length share is that of the utilities, and that there is a reference if it counts."""
        if loss_type not in LOSSES:
            raise BadKeyError(
                "training.loss_type",
                f"={loss_type} does not work with objective=xdr, whose weights follow from a completion's share in the "
                "loss: choose dr_grpo (its length / max_completion_length) or grpo (1).",
            )
        if loss_type == "dr_grpo" and max_completion_length is None:
            raise BadKeyError("training.max_completion_length", "=null: objective=xdr with dr_grpo needs a limit.")
        if self.reference > 0 and beta == 0:
            raise BadKeyError(
                "objective.xdr_reference",
                f"={show(self.reference)} needs the reference model, and with training.beta=0 there is none: set "
                "training.beta above 0 (1e-8 for hardly any KL term in the loss), or xdr_reference=0.",
            )
        if math.isinf(self.tau) and math.isinf(self.reference):
            raise BadKeyError(
                "objective.xdr_reference", "=inf cannot be combined with xdr_tau=inf: the limit is undefined."
            )
