"""Objectives: from the rewards of a group to advantages, and controllers of the KL weight β.

Pure functions of tensors and numbers. `training/` supplies their inputs and passes the advantages to TRL's loss.
"""

from __future__ import annotations

from covey.objective.grpo import GRPO
from covey.objective.interface import Metrics, Objective
from covey.objective.kl import AdaptiveKL, KLController, kl_per_token
from covey.objective.maxent import MaxEnt
from covey.objective.registry import REGISTRY, make
from covey.objective.weights import maxent_log_weights, maxent_weights

__all__ = [
    "GRPO",
    "REGISTRY",
    "AdaptiveKL",
    "KLController",
    "MaxEnt",
    "Metrics",
    "Objective",
    "kl_per_token",
    "make",
    "maxent_log_weights",
    "maxent_weights",
]
