"""The config: one schema, composed from groups, recipes and overrides, checked before anything heavy loads.

`load(overrides, recipe)` is the way in. Nothing here imports torch, transformers or trl.
"""

from __future__ import annotations

from covey.config.build import build
from covey.config.compose import load
from covey.config.keys import known_keys
from covey.config.render import KeyDoc, differences, document, to_yaml
from covey.config.schema import (
    Config,
    DatasetConfig,
    DifficultyConfig,
    EvaluationConfig,
    LaunchConfig,
    LoggingConfig,
    ModelConfig,
    ObjectiveConfig,
    RewardsConfig,
    SpeedConfig,
)
from covey.config.training import TrainingConfig, check_geometry

__all__ = [
    "Config",
    "DatasetConfig",
    "DifficultyConfig",
    "EvaluationConfig",
    "KeyDoc",
    "LaunchConfig",
    "LoggingConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "RewardsConfig",
    "SpeedConfig",
    "TrainingConfig",
    "build",
    "check_geometry",
    "differences",
    "document",
    "known_keys",
    "load",
    "to_yaml",
]
