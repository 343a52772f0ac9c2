"""Covey: group-relative policy optimisation of language models on answers that can be checked.

`GRPOTrainer` and `GRPOConfig` are drop-in replacements for TRL's; `covey.train`, `covey.evaluate`, `covey.compare` and
`covey.generate` do what the commands do. Importing `covey` is light: what needs PyTorch is loaded on first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from covey._version import __version__
from covey.former_paths import FormerPaths

if TYPE_CHECKING:
    from covey.api import compare, evaluate, generate, train
    from covey.config import SpeedConfig
    from covey.errors import CoveyError
    from covey.objective import AdaptiveKL, MaxEnt
    from covey.training.trl.trainer import GRPOConfig, GRPOTrainer

__all__ = [
    "AdaptiveKL",
    "CoveyError",
    "GRPOConfig",
    "GRPOTrainer",
    "MaxEnt",
    "SpeedConfig",
    "__version__",
    "compare",
    "evaluate",
    "generate",
    "train",
]

_HOMES = {
    "AdaptiveKL": "covey.objective",
    "CoveyError": "covey.errors",
    "GRPOConfig": "covey.training.trl.trainer",
    "GRPOTrainer": "covey.training.trl.trainer",
    "MaxEnt": "covey.objective",
    "SpeedConfig": "covey.config",
    "compare": "covey.api",
    "evaluate": "covey.api",
    "generate": "covey.api",
    "train": "covey.api",
}


sys.meta_path.append(FormerPaths())


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'covey' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
