"""Covey: group-relative policy optimisation of language models on answers that can be checked.

`from covey import GRPOTrainer, GRPOConfig` gives a drop-in for TRL's trainer; `covey.train` and `covey.evaluate` do
what the commands do. Importing `covey` itself stays light: what needs PyTorch is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from covey._version import __version__

if TYPE_CHECKING:
    from covey.api import evaluate, train
    from covey.config import SpeedConfig
    from covey.errors import CoveyError
    from covey.objective import AdaptiveKL, MaxEnt
    from covey.training.trainer import GRPOConfig, GRPOTrainer

__all__ = [
    "AdaptiveKL",
    "CoveyError",
    "GRPOConfig",
    "GRPOTrainer",
    "MaxEnt",
    "SpeedConfig",
    "__version__",
    "evaluate",
    "train",
]

_HOMES = {
    "AdaptiveKL": "covey.objective",
    "CoveyError": "covey.errors",
    "GRPOConfig": "covey.training.trainer",
    "GRPOTrainer": "covey.training.trainer",
    "MaxEnt": "covey.objective",
    "SpeedConfig": "covey.config",
    "evaluate": "covey.api",
    "train": "covey.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'covey' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
