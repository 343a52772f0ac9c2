"""Covey: group-relative policy optimisation of language models on answers that can be checked.

`from covey import GRPOTrainer, GRPOConfig` gives a drop-in for TRL's trainer. Importing `covey` itself stays light:
what needs PyTorch is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from covey._version import __version__

if TYPE_CHECKING:
    from covey.config import SpeedConfig
    from covey.training.trainer import GRPOConfig, GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer", "SpeedConfig", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("GRPOConfig", "GRPOTrainer"):
        from covey.training import trainer

        return getattr(trainer, name)
    if name == "SpeedConfig":
        from covey.config import SpeedConfig

        return SpeedConfig
    raise AttributeError(f"module 'covey' has no attribute {name!r}")
