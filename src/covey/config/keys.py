"""All dotted keys with their types, the nearest ones to an unknown key, and what a file or a command line sets."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from covey.config.groups.dataset import DatasetConfig, DifficultyConfig, HardDifficultyConfig, MixtureConfig
from covey.config.groups.environment import EnvironmentConfig
from covey.config.groups.model import LoraConfig, ModelConfig
from covey.config.groups.objectives import KLConfig, ObjectiveConfig
from covey.config.groups.rewards import CodeConfig, RewardModelConfig, RewardsConfig
from covey.config.groups.running import (
    EvaluationConfig,
    LaunchConfig,
    LoggingConfig,
    ProfileConfig,
    SftConfig,
    SlurmConfig,
)
from covey.config.groups.sampling import RolloutConfig, SpeedConfig
from covey.config.groups.training import OWNED_ELSEWHERE, TrainingConfig, training_fields
from covey.config.schema import Config
from covey.config.values import BadKeyError, is_mapping_kind
from covey.config.yaml import MAX_DEPTH

_LONGEST = 500
"""Most characters of a key, including keys inside mappings."""

GROUPS: Mapping[str, type] = MappingProxyType(
    {
        "model": ModelConfig,
        "model.lora": LoraConfig,
        "dataset": DatasetConfig,
        "dataset.mixture": MixtureConfig,
        "dataset.difficulty": DifficultyConfig,
        "dataset.hard_difficulty": HardDifficultyConfig,
        "environment": EnvironmentConfig,
        "rewards": RewardsConfig,
        "rewards.code": CodeConfig,
        "rewards.model": RewardModelConfig,
        "objective": ObjectiveConfig,
        "objective.kl": KLConfig,
        "training": TrainingConfig,
        "rollout": RolloutConfig,
        "speed": SpeedConfig,
        "evaluation": EvaluationConfig,
        "profile": ProfileConfig,
        "sft": SftConfig,
        "logging": LoggingConfig,
        "launch": LaunchConfig,
        "launch.slurm": SlurmConfig,
    }
)
"""The keys that hold other keys, in the order in which a config is written."""


@cache
def kinds() -> Mapping[str, str]:
    """Every key that takes a value, with its type as text."""
    found: dict[str, str] = {}
    for prefix, group in {"": Config, **GROUPS}.items():
        dot = f"{prefix}." if prefix else ""
        if group is TrainingConfig:
            names = {n: f.type for n, f in training_fields().items() if n not in OWNED_ELSEWHERE}
        else:
            names = {item.name: str(item.type) for item in dataclasses.fields(group)}
        found |= {dot + name: kind for name, kind in names.items() if dot + name not in GROUPS}
    return MappingProxyType(found)


def known_keys() -> list[str]:
    """Every dotted key that takes a value."""
    return list(kinds())


def check_length(key: str) -> None:
    """Raise a `BadKeyError` for a name that is too long, or has too many parts, to be a key."""
    if len(key) > _LONGEST or key.count(".") > MAX_DEPTH:
        raise BadKeyError(key, f" is not a key that Covey knows: no key has {len(key)} characters and that many parts.")


def check_known(key: str) -> None:
    """Raise a `BadKeyError`, naming the nearest ones, for a key that is not a value, group or entry of a mapping, or
    that another key replaces."""
    if key in kinds() or key in GROUPS:
        return
    parts = key.split(".")
    for length in range(1, len(parts)):
        parent = ".".join(parts[:length])
        if parent in kinds():
            if is_mapping_kind(kinds()[parent]):
                return
            raise BadKeyError(key, f" does not exist: {parent} takes a value and holds no keys.")
    group, _, name = key.rpartition(".")
    if group == "training" and name in OWNED_ELSEWHERE:
        raise BadKeyError(key, f" is not read: {OWNED_ELSEWHERE[name]}.")
    keys = [known for known in kinds() if known.rpartition(".")[0] == group and group]
    listed = f" The keys of {group} are: {', '.join(keys)}." if 0 < len(keys) <= 20 else ""
    raise BadKeyError(key, f" is not a key that Covey knows.{did_you_mean(nearest(key)) or listed}")


def nearest(key: str) -> list[str]:
    """Up to three known keys most similar to this one, with or without its group."""
    key = key[:_LONGEST]
    group, _, last = key.rpartition(".")
    scored = []
    for known in (*kinds(), *GROUPS):
        its_group, _, name = known.rpartition(".")
        score = _similarity(last, name) + (0.15 if its_group == group else 0.0)
        whole = _similarity(key, known)  # alone no evidence: a long group name makes any two keys similar
        scored.append((max(score, whole) if whole > 0.9 else score, known))
    scored.sort(key=lambda pair: -pair[0])
    best = scored[0][0]
    return [known for score, known in scored[:3] if score >= 0.7 and score > best - 0.09]


def did_you_mean(names: list[str]) -> str:
    """A sentence that suggests these names; empty when there are none."""
    return f" Did you mean {' or '.join(names)}?" if names else ""


def _similarity(a: str, b: str) -> float:
    matcher = difflib.SequenceMatcher(None, a, b)
    return matcher.ratio() if matcher.quick_ratio() > 0.6 else 0.0


@dataclass(frozen=True, slots=True)
class Written:
    """One key as the user wrote it."""

    name: str
    value: Any
    by: str = "recipe"
    """What sets it: a `recipe`, a config `group`, an `override` or a `flag`."""
    place: str = ""
    """Where it was written: `FILE, line N`, or the words on the command line."""
    delete: bool = False
    """Whether the key is removed instead of set."""

    @property
    def typed(self) -> bool:
        """Whether it is on the command line."""
        return self.by in ("override", "flag")

    @property
    def where(self) -> str:
        """Where it was written, for a message."""
        return f"the {self.by} `{self.place}`" if self.typed else self.place

    def sentence(self, key: str = "") -> str:
        """A sentence on where it was written; it gives the name if that is another than this key."""
        if self.typed:
            return f" (Set by {self.where}.)"
        return f" (Set in {self.where}{f', as {self.name}' if key and key != self.name else ''}.)" if self.place else ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One of Covey's own keys, its value, and the key as written that it comes from."""

    key: str
    value: Any
    written: Written
    native: bool = True
    """Whether it was written under Covey's own key."""
    implied: bool = False
    """Whether another key implies it, so that it holds only where the user sets none."""
    note: str = ""
    """What the user is told where an implied value holds."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One option of a config group; None drops the group."""

    group: str
    option: str | None
    optional: bool = False
    """Whether it may be missing."""
    origin: str = ""
    """Where it was chosen, for messages."""
    implied: bool = False
    """Whether a key implies it, so that it holds only where the user sets nothing of that group."""


@dataclass(slots=True)
class Source:
    """What one source sets: a recipe, the user's config groups, or the command line."""

    settings: list[Setting] = field(default_factory=list)
    """In the order written, implied ones included."""
    choices: list[Choice] = field(default_factory=list)
    """Options of config groups, implied ones included."""
    notes: list[str] = field(default_factory=list)
    foreign_names: list[str] = field(default_factory=list)
    """Its keys that are another tool's, as written."""
    canonical_values: dict[str, Any] = field(default_factory=dict)
    """Set so far, by this source and those before it; by canonical name."""

    @property
    def foreign(self) -> bool:
        """Whether any key is another tool's."""
        return bool(self.foreign_names)

    @property
    def keys(self) -> set[str]:
        """The keys it sets or removes itself."""
        return {setting.key for setting in self.settings if not setting.implied}


VLLM_RANGE = ((0, 22), (0, 31))
"""The first and the last of vLLM's minor versions that TRL 1.16 declares."""
