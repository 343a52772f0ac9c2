"""Objectives that need rewards alone: GRPO, Dr. GRPO, MaxRL, pass@k and quantile baselines.

The functions take rewards and a mask, `[P, G]`, and return advantages `[P, G]`, 0 where the mask is false or the reward
is not finite; such completions enter no mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from covey.config.groups.objectives import DrGRPOSettings, MaxRLSettings, PassKSettings, QuantileSettings
from covey.objective.groups import centred, counting, mean, precise
from covey.objective.interface import BuiltIn, Metrics, Objective


class GRPO(Objective):
    """Leaves TRL's advantages unchanged: rewards minus the group's mean, scaled by `scale_rewards`.

    Loss type, clipping and importance sampling are TRL's own settings.

    Source: Shao et al. 2024, DeepSeekMath (arXiv:2402.03300), section 4.1.
    """

    @property
    def keeps_trl_advantages(self) -> bool:
        """True, unless a derived class computes its own."""
        return type(self).advantages is GRPO.advantages

    def advantages(self, *_: Any, **__: Any) -> tuple[None, Metrics]:
        """None: TRL's advantages stay."""
        return None, {}


_ROUNDING = 1e-12  # a mean below this share of the largest reward is a sum of rewards that cancel


def dr_grpo_advantages(rewards_PG: Tensor, mask_PG: Tensor | None = None) -> Tensor:
    """A_i = r_i - r̄, without the standard deviation.

    A group of equal rewards has exactly 0.

    Source: Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv:2503.20783), section 3.2; the other half of
    Dr. GRPO is its loss, which divides by the limit of the length.
    """
    return centred(rewards_PG, counting(rewards_PG, mask_PG))


def maxrl_advantages(rewards_PG: Tensor, mask_PG: Tensor | None = None) -> Tensor:
    """A_i / r̄, and 0 in a group with r̄ ≤ 0.

    With 0/1 rewards and n completions, the gradient is that of the likelihood of being right, log p, up to the order n
    of its series in 1 - p; hard prompts weigh about 1 / p. Assumes rewards of at least 0.

    Source: Tajwar et al. 2026, Maximum Likelihood Reinforcement Learning (arXiv:2602.02710), theorem 2 with its
    control variate.
    """
    kept_PG = counting(rewards_PG, mask_PG)
    values_PG = precise(rewards_PG, kept_PG)
    mean_P1 = mean(values_PG, kept_PG)
    positive_P1 = mean_P1 > _ROUNDING * values_PG.abs().amax(dim=-1, keepdim=True)
    scaled_PG = centred(rewards_PG, kept_PG) / torch.where(positive_P1, mean_P1, 1.0)
    return scaled_PG.masked_fill(~positive_P1, 0.0)


def passk_advantages(rewards_PG: Tensor, mask_PG: Tensor | None = None, *, k: int) -> Tensor:
    """The mean over all subsets of k completions of their highest reward, as each completion contributes; centred.

    With g_1 ≤ … ≤ g_n the rewards in ascending order, completion i gets

        s_i = [C(i-1, k-1)·g_i + Σ_{j>i} C(j-2, k-2)·g_j] / C(n, k),

    less the group's mean. Σ_i s_i·∇log π(o_i) is an unbiased estimate of the gradient of the expected maximum of k
    rewards. With 0/1 rewards, c of n right, that is pass@k: s = k/n for right completions and (k/n)·ρ(n-1, c, k-1) for
    wrong ones, with ρ(n, c, k) = 1 - C(n-c, k) / C(n, k). With k = 1 it is A_i / n. With k or fewer
    completions that count, all contribute the same, and have 0. Equal rewards give 0.

    Source: Walder and Karkhanis 2025, Pass@K Policy Optimization (arXiv:2505.15201), the binary and the continuous
    estimator. Centred by the mean of the group, not by a leave-one-out baseline.
    """
    kept_PG = counting(rewards_PG, mask_PG)
    values_PG = precise(rewards_PG, kept_PG)
    out_PG = torch.zeros_like(values_PG)
    for values_G, kept_G, out_G in zip(values_PG, kept_PG, out_PG, strict=True):
        if not kept_G.any():
            continue
        ascending_N, order_N = (values_G[kept_G] - values_G[kept_G].max()).sort()  # relative: equal ones are exactly 0
        n = len(ascending_N)
        own, other = (ascending_N.new_tensor(part) for part in _subset_shares(n, min(k, n)))
        later_N = (other * ascending_N).flip(0).cumsum(0).flip(0) - other * ascending_N
        out_G[kept_G.nonzero().flatten()[order_N]] = own * ascending_N + later_N
    return centred(out_PG, kept_PG)


@lru_cache(maxsize=256)
def _subset_shares(n: int, k: int) -> tuple[list[float], list[float]]:
    """For the j-th smallest of n, the share of all subsets of size k in which it is the largest; and in which it is,
    among those that hold a given smaller one."""
    total = math.comb(n, k)
    own = [math.comb(j - 1, k - 1) / total for j in range(1, n + 1)]
    other = [math.comb(j - 2, k - 2) / total if j >= 2 and k >= 2 else 0.0 for j in range(1, n + 1)]
    return own, other


def quantile_advantages(rewards_PG: Tensor, mask_PG: Tensor | None = None, *, level: float) -> Tensor:
    """r_i - Q_K(r), with Q_K the smallest reward that at least a share K of the group does not exceed.

    With 0/1 rewards and a share p of right completions, p ≤ 1 - K gives 1 to right ones and 0 to wrong ones; p > 1 - K
    gives 0 to right ones and -1 to wrong ones. Equal rewards give 0. The sum over a group is not 0.

    Source: Wu et al. 2025, Quantile Advantage Estimation (arXiv:2509.22611), abstract; its division by the standard
    deviation is left out.
    """
    kept_PG = counting(rewards_PG, mask_PG)
    values_PG = precise(rewards_PG, kept_PG)
    n_P1 = kept_PG.sum(dim=-1, keepdim=True)
    place_P1 = (torch.ceil(level * n_P1.to(values_PG) - 1e-9).long() - 1).clamp(min=0)
    ascending_PG = values_PG.masked_fill(~kept_PG, torch.inf).sort(dim=-1).values
    return (values_PG - ascending_PG.gather(-1, place_P1)).masked_fill(~kept_PG, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGRPO(DrGRPOSettings, BuiltIn):
    """The advantages of `dr_grpo_advantages`, for the loss dr_grpo."""

    def advantages(self, rewards_PG: Tensor, mask_PG: Tensor, **_: Any) -> tuple[Tensor, Metrics]:
        """See the class."""
        return dr_grpo_advantages(rewards_PG, mask_PG), {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxRL(MaxRLSettings, BuiltIn):
    """The advantages of `maxrl_advantages`."""

    def advantages(self, rewards_PG: Tensor, mask_PG: Tensor, **_: Any) -> tuple[Tensor, Metrics]:
        """See the class."""
        return maxrl_advantages(rewards_PG, mask_PG), {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassK(PassKSettings, BuiltIn):
    """The advantages of `passk_advantages`."""

    def advantages(self, rewards_PG: Tensor, mask_PG: Tensor, **_: Any) -> tuple[Tensor, Metrics]:
        """See the class."""
        return passk_advantages(rewards_PG, mask_PG, k=self.k), {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile(QuantileSettings, BuiltIn):
    """The advantages of `quantile_advantages`."""

    def advantages(self, rewards_PG: Tensor, mask_PG: Tensor, **_: Any) -> tuple[Tensor, Metrics]:
        """See the class."""
        return quantile_advantages(rewards_PG, mask_PG, level=self.level), {}
