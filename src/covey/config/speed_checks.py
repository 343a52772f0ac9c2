"""What a token budget asks of the rest of the config, checked without importing torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from covey.config.training import TrainingConfig
from covey.config.values import BadKeyError

if TYPE_CHECKING:
    from covey.config.schema import SpeedConfig


def check_speed(speed: SpeedConfig, training: TrainingConfig) -> None:
    """Check that the pieces of a micro-batch would add up to its gradient.

    Raises:
        BadKeyError: naming what stands against it, and what would work.
    """
    if speed.max_tokens is None:
        return
    reasons = {
        f"training.loss_type={training.loss_type} divides by the tokens of a micro-batch": training.loss_type == "bnpo",
        "the entropy bonus (training.entropy_coef, training.use_adaptive_entropy) is a mean over the tokens of a "
        "micro-batch": bool(training.entropy_coef) or training.use_adaptive_entropy,
        f"training.top_entropy_quantile={training.top_entropy_quantile} sets a threshold over the tokens of a "
        "micro-batch": training.top_entropy_quantile < 1,
    }
    for reason, holds in reasons.items():
        if holds:
            other = ", or choose another training.loss_type, such as dapo" if training.loss_type == "bnpo" else ""
            raise BadKeyError(
                "speed.max_tokens",
                f"={speed.max_tokens} cuts a micro-batch into pieces, and {reason}: take a smaller "
                f"training.per_device_train_batch_size and leave speed.max_tokens out{other}.",
            )
