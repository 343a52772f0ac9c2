"""The group `speed`: which repeated work is saved, and what a token budget requires of the rest of the config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from covey.config.groups.base import Group, option
from covey.config.groups.training import TrainingConfig
from covey.config.values import BadKeyError


@dataclass(frozen=True, kw_only=True)
class SpeedConfig(Group):
    """Which repeated work is saved. Nothing here changes the numbers."""

    PREFIX: ClassVar[str] = "speed."

    shared_prefill: bool = True
    """Whether sampling prefills the prompt of a group once and drops finished completions; false uses transformers' own
    `generate`. Has no effect with vLLM or an engine of your own."""
    shared_scoring: bool = True
    """Whether log-probs and gradients process the prompt of a group once, and no padding."""
    trim: bool = True
    """Whether micro-batches hold whole groups where possible, and padding is trimmed to their longest row."""
    skip_zero: bool = True
    """Whether completions whose gradient is exactly zero skip the forward and backward pass of the loss. The logged
    `entropy` is then that of the others."""
    max_tokens: int | None = option(None, low=1)
    """Token budget of one forward and backward pass, counting padding that the model processes; a larger micro-batch is
    split into chunks with the same gradient. null splits by rows only."""


def check_speed(speed: SpeedConfig, training: TrainingConfig) -> None:
    """Check that the chunks of a micro-batch would add up to its gradient.

    Raises:
        BadKeyError: naming the reason why not, and what would work.
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
                f"={speed.max_tokens} splits a micro-batch into chunks, and {reason}: take a smaller "
                f"training.per_device_train_batch_size and leave speed.max_tokens out{other}.",
            )
