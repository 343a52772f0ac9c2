"""The group `rollout`: the engine that generates the completions in training; and the names of all engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from covey.config.groups.base import Group, option
from covey.config.groups.training import TrainingConfig
from covey.config.values import BadKeyError, check_choice

ENGINES: Mapping[str, str] = MappingProxyType(
    {"local": "covey.rollout.local.engine:LocalEngine", "vllm": "covey.rollout.vllm.offline:VLLMEngine"}
)
"""Engines by name, and where their classes are; `covey.rollout.registry` makes them."""


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
