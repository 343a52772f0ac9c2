"""The dotted keys there are, with their types, and the nearest ones to a key that is none."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from covey.config import snapshot
from covey.config.dataset import DatasetConfig, DifficultyConfig, MixtureConfig
from covey.config.launch import LaunchConfig, SlurmConfig
from covey.config.model import LoraConfig, ModelConfig
from covey.config.schema import (
    Config,
    EvaluationConfig,
    KLConfig,
    LoggingConfig,
    ObjectiveConfig,
    RewardsConfig,
    SpeedConfig,
)
from covey.config.training import OWNED_ELSEWHERE, TrainingConfig
from covey.config.values import BadKeyError, is_mapping_kind

GROUPS: Mapping[str, type] = MappingProxyType(
    {
        "model": ModelConfig,
        "model.lora": LoraConfig,
        "dataset": DatasetConfig,
        "dataset.mixture": MixtureConfig,
        "dataset.difficulty": DifficultyConfig,
        "dataset.hard_difficulty": DifficultyConfig,
        "rewards": RewardsConfig,
        "objective": ObjectiveConfig,
        "objective.kl": KLConfig,
        "training": TrainingConfig,
        "speed": SpeedConfig,
        "evaluation": EvaluationConfig,
        "logging": LoggingConfig,
        "launch": LaunchConfig,
        "launch.slurm": SlurmConfig,
    }
)
"""The keys that hold other keys, in the order they are written."""


@cache
def kinds() -> Mapping[str, str]:
    """Every key that takes a value, with its type as text."""
    found: dict[str, str] = {}
    for prefix, group in {"": Config, **GROUPS}.items():
        dot = f"{prefix}." if prefix else ""
        if group is TrainingConfig:
            names = {n: f.type for n, f in snapshot.fields().items() if n not in OWNED_ELSEWHERE}
        else:
            names = {item.name: str(item.type) for item in dataclasses.fields(group)}
        found |= {dot + name: kind for name, kind in names.items() if dot + name not in GROUPS}
    return MappingProxyType(found)


def known_keys() -> list[str]:
    """Every dotted key that can be set to a value."""
    return list(kinds())


def check_known(key: str) -> None:
    """Refuse a key that neither takes a value nor holds keys nor lies in a mapping, naming the nearest ones.

    Raises:
        BadKeyError: nobody knows this key, or another key owns its fact.
    """
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
    near = did_you_mean(nearest(key)) or _keys_of(group)
    raise BadKeyError(key, f" is not a key that Covey knows.{near}")


def nearest(key: str) -> list[str]:
    """Up to three known keys that look most like this one, with or without its group."""
    group, _, last = key.rpartition(".")
    scored = []
    for known in (*kinds(), *GROUPS):
        home, _, name = known.rpartition(".")
        score = _alike(last, name) + (0.15 if home == group else 0.0)
        whole = _alike(key, known)  # alone it says little, since a long group name makes any two keys alike
        scored.append((max(score, whole) if whole > 0.9 else score, known))
    scored.sort(key=lambda pair: -pair[0])
    best = scored[0][0]
    return [known for score, known in scored[:3] if score >= 0.7 and score > best - 0.09]


def did_you_mean(names: list[str]) -> str:
    """A sentence that offers these names, or nothing when there are none."""
    return f" Did you mean {' or '.join(names)}?" if names else ""


def _keys_of(group: str) -> str:
    """A sentence that lists the keys of a group, if it is small."""
    keys = [key for key in kinds() if key.rpartition(".")[0] == group and group]
    return f" The keys of {group} are: {', '.join(keys)}." if 0 < len(keys) <= 20 else ""


def _alike(a: str, b: str) -> float:
    matcher = difflib.SequenceMatcher(None, a, b)
    return matcher.ratio() if matcher.quick_ratio() > 0.6 else 0.0
