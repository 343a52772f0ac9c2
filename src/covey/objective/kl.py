"""The KL divergence between policy and reference, and controllers of its weight β. Plain numbers and tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from covey.errors import ConfigError

BETA_FLOOR = 1e-8
"""Lower bound of β: at 0 the reference would not be scored, and β could not rise again."""


def kl_per_token(logps_BT: Tensor, ref_logps_BT: Tensor) -> Tensor:
    """An estimate of KL(policy ‖ reference) at every sampled token: never negative, and unbiased on policy.

    With d = log π_ref - log π it is exp(d) - d - 1, which TRL's loss uses too.

    Args:
        logps_BT: log-probabilities of the tokens under the policy, `[B, T]`, in nats.
        ref_logps_BT: the same under the reference.

    Source: Schulman 2020, "Approximating KL Divergence", k3.
    """
    difference_BT = ref_logps_BT - logps_BT
    return torch.exp(difference_BT) - difference_BT - 1


class KLController(Protocol):
    """Updates β after each optimiser step; without one, β is constant. Its only state is β, which a checkpoint has."""

    def next_beta(self, beta: float, kl: float, completions: int) -> float:
        """β for the next step.

        Args:
            beta: β of this step.
            kl: mean KL divergence per completion token of this step, in nats.
            completions: number of completions in this step.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveKL:
    """A proportional controller that raises β while the KL is above a target and lowers it below, within bounds.

    β ← β·(1 + clip(KL / target - 1, ± step_size) · completions / horizon), and never below 1e-8.

    Source: Ziegler et al. 2019, Fine-Tuning Language Models from Human Preferences (arXiv:1909.08593), section 2.2,
    with the bound on the error as a setting.
    """

    target: float
    """Target KL divergence per completion token, in nats."""
    horizon: float = 10_000
    """Number of completions over which β changes by about the (bounded) relative error."""
    step_size: float = 0.2
    """Bound on the relative error."""

    def __post_init__(self) -> None:
        for name, value in (("target", self.target), ("horizon", self.horizon), ("step_size", self.step_size)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"AdaptiveKL: {name}={value:g} must be a finite number above 0.")

    def next_beta(self, beta: float, kl: float, completions: int) -> float:
        """β for the next step; see the class. A KL that is not a number leaves β as it is."""
        if math.isnan(kl):
            return beta
        error = min(max(kl / self.target - 1, -self.step_size), self.step_size)
        return max(beta * (1 + error * completions / self.horizon), BETA_FLOOR)
