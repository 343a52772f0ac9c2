"""The config: one schema, composed from groups, recipes and overrides, checked before anything heavy loads.

`compose(overrides, recipe)` is the way in, and `load` its thin form. Nothing here imports torch, transformers or trl.
"""

from __future__ import annotations

from covey.config.build import build
from covey.config.compose import Composed, compose, load
from covey.config.dataset import DatasetConfig, DifficultyConfig, MixtureConfig, MixtureSource
from covey.config.flags import Flag, Words, split
from covey.config.keys import known_keys
from covey.config.launch import LaunchConfig, SlurmConfig
from covey.config.model import LoraConfig, ModelConfig
from covey.config.render import KeyDoc, differences, document, to_yaml
from covey.config.schema import (
    Config,
    EvaluationConfig,
    KLConfig,
    LoggingConfig,
    ObjectiveConfig,
    RewardsConfig,
    SpeedConfig,
)
from covey.config.training import TrainingConfig, check_geometry

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
