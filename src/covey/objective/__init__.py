"""Objectives: from the rewards of a group to advantages, and controllers of the KL weight β.

Pure functions of tensors and numbers. `training/` supplies their inputs and passes the advantages to TRL's loss.
"""

from __future__ import annotations

from covey.objective.by_modes import (
    SEED,
    Darling,
    Unique,
    Unlikely,
    darling_advantages,
    seed_scales,
    unique_factors,
    unlikely_advantages,
)
from covey.objective.by_rewards import (
    GRPO,
    DrGRPO,
    MaxRL,
    PassK,
    Quantile,
    dr_grpo_advantages,
    maxrl_advantages,
    passk_advantages,
    quantile_advantages,
)
from covey.objective.groups import maxent_weights
from covey.objective.interface import Metrics, Objective
from covey.objective.kl import AdaptiveKL, KLController, kl_per_token
from covey.objective.maxent import MaxEnt
from covey.objective.registry import REGISTRY, make
from covey.objective.xdr import XDR, xdr_weights

__all__ = [
    "GRPO",
    "REGISTRY",
    "SEED",
    "XDR",
    "AdaptiveKL",
    "Darling",
    "DrGRPO",
    "KLController",
    "MaxEnt",
    "MaxRL",
    "Metrics",
    "Objective",
    "PassK",
    "Quantile",
    "Unique",
    "Unlikely",
    "darling_advantages",
    "dr_grpo_advantages",
    "kl_per_token",
    "make",
    "maxent_weights",
    "maxrl_advantages",
    "passk_advantages",
    "quantile_advantages",
    "seed_scales",
    "unique_factors",
    "unlikely_advantages",
    "xdr_weights",
]
