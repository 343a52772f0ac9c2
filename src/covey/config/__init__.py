"""The config: one schema, composed from groups, recipes and overrides, checked before anything heavy loads.

`compose(overrides, recipe)` is the entry point; `load` returns its config alone. Nothing here imports torch,
transformers or trl.
"""

from __future__ import annotations

from covey.config.compose.build import build
from covey.config.compose.compose import Composed, compose, load
from covey.config.compose.flags import Flag, Words, split
from covey.config.compose.render import KeyDoc, differences, document, to_yaml
from covey.config.groups.dataset import DatasetConfig, DifficultyConfig, MixtureConfig, MixtureSource
from covey.config.groups.model import LoraConfig, ModelConfig
from covey.config.groups.objectives import KLConfig, ObjectiveConfig
from covey.config.groups.rewards import RewardsConfig
from covey.config.groups.running import EvaluationConfig, LaunchConfig, LoggingConfig, SlurmConfig
from covey.config.groups.sampling import RolloutConfig, SpeedConfig
from covey.config.groups.training import TrainingConfig, check_geometry
from covey.config.keys import known_keys
from covey.config.schema import Config

__all__ = [
    "Composed",
    "Config",
    "DatasetConfig",
    "DifficultyConfig",
    "EvaluationConfig",
    "Flag",
    "KLConfig",
    "KeyDoc",
    "LaunchConfig",
    "LoggingConfig",
    "LoraConfig",
    "MixtureConfig",
    "MixtureSource",
    "ModelConfig",
    "ObjectiveConfig",
    "RewardsConfig",
    "RolloutConfig",
    "SlurmConfig",
    "SpeedConfig",
    "TrainingConfig",
    "Words",
    "build",
    "check_geometry",
    "compose",
    "differences",
    "document",
    "known_keys",
    "load",
    "split",
    "to_yaml",
]
