"""The groups `rollout`, what generates the completions in training, and `speed`, which repeated work is saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from covey.config.groups.training import TrainingConfig
from covey.config.values import BadKeyError, Group, check_choice, option

ENGINES: Mapping[str, str] = MappingProxyType(
    {"local": "covey.rollout.local.engine:LocalEngine", "vllm": "covey.rollout.vllm.engine:VLLMEngine"}
)
"""Engines by name, and where their classes are; `covey.rollout.generate` makes them."""


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Group):
    """What generates the completions in training."""

    PREFIX: ClassVar[str] = "rollout."

    engine: str | None = None
    """Your own inference engine, as `file.py:Class` or `package.module:Class`; null means vLLM with
    `training.use_vllm=true`, else Covey's own (`local`)."""

    support: str = option("kept", choices=("kept", "full"), live="truncates or training.repetition_penalty != 1")
    """Over which tokens log-probs are normalised when top-k, top-p or min-p cut the vocabulary: those that could be
    sampled, so that ratios are 1 at unchanged weights, or the full vocabulary, as TRL does."""
    support_top_k: int = option(64, low=1, live="rollout.support == 'kept' and truncates and training.top_k == 0")
    """Most tokens that can be sampled in one place when top-p or min-p cut the vocabulary and `training.top_k` does
    not; only with `support=kept`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine == "vllm":
            raise BadKeyError("rollout.engine", "=vllm is set by training.use_vllm=true, which has vLLM's own keys.")
        if self.engine is not None:
            check_engine("rollout.engine", self.engine)

    @property
    def own_engine(self) -> str | None:
        """The user's own engine, if one is named."""
        return None if self.engine in ENGINES else self.engine


def check_engine(key: str, name: str) -> None:
    """Raise a `BadKeyError` unless this is the name of an engine, or can be that of a user's own class."""
    if ":" not in name:
        check_choice(key, name, (*ENGINES, "file.py:Class"))


def check_rollout(rollout: RolloutConfig, training: TrainingConfig) -> None:
    """Raise a `BadKeyError` if two engines are named."""
    if rollout.engine is not None and training.use_vllm:
        raise BadKeyError(
            "rollout.engine", f"={rollout.engine} and training.use_vllm=true name two engines: leave one of them out."
        )
    if rollout.own_engine is not None and training.use_transformers_continuous_batching:
        raise BadKeyError(
            "rollout.engine",
            f"={rollout.engine} and training.use_transformers_continuous_batching=true name two engines: leave one of "
            "them out.",
        )


BNPO = "training.loss_type=bnpo divides by the tokens of a micro-batch"
"""Why its loss depends on which rows share a micro-batch."""


@dataclass(frozen=True, kw_only=True)
class SpeedConfig(Group):
    """Which repeated work is saved. Nothing here changes the numbers."""

    PREFIX: ClassVar[str] = "speed."

    shared_prefill: bool = option(
        True,
        live="not training.use_vllm and not rollout.own_engine and not training.use_transformers_continuous_batching",
    )
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


def coupling(training: Any, *, router_loss: bool = False) -> str | None:
    """Why more than the denominators of the loss depends on which rows share a micro-batch; None when nothing does.

    Args:
        training: TRL's fields, as `TrainingConfig` or TRL's own `GRPOConfig`.
        router_loss: whether a mixture of experts adds its load-balancing loss.
    """
    if training.entropy_coef or training.use_adaptive_entropy:
        keys = "training.entropy_coef, training.use_adaptive_entropy"
        return f"the entropy bonus ({keys}) is a mean over the tokens of a micro-batch"
    if router_loss:
        return "the router's auxiliary loss is computed over a whole micro-batch"
    if training.top_entropy_quantile < 1:
        quantile = training.top_entropy_quantile
        return f"training.top_entropy_quantile={quantile} sets a threshold over the tokens of a micro-batch"
    return None


def check_token_budget(max_tokens: int | None, training: Any, *, router_loss: bool = False) -> None:
    """Refuse a token budget where the chunks of a micro-batch would not add up to its gradient.

    Args:
        max_tokens: the budget; None is none.
        training: TRL's fields, as `TrainingConfig` or TRL's own `GRPOConfig`.
        router_loss: whether a mixture of experts adds its load-balancing loss.

    Raises:
        BadKeyError: naming the reason, and what would work.
    """
    if max_tokens is None:
        return
    reason, other = coupling(training, router_loss=router_loss), ""
    optimizer = str(getattr(training.optim, "value", training.optim))
    if training.loss_type == "bnpo":
        reason, other = BNPO, ", or choose another training.loss_type, such as dapo"
    elif "lomo" in optimizer:
        reason = f"training.optim={optimizer} updates the weights within every backward pass"
    if reason is not None:
        raise BadKeyError(
            "speed.max_tokens",
            f"={max_tokens} splits a micro-batch into chunks, and {reason}: take a smaller "
            f"training.per_device_train_batch_size and leave speed.max_tokens out{other}.",
        )
