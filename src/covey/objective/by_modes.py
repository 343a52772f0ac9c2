"""Objectives that compare the completions of a group: by answer modes, or by likelihood.

The functions take rewards, modes (int64, -1 for none) and a mask, `[P, G]`, and return advantages `[P, G]`, 0 where the
mask is false or the reward is not finite; such completions enter no mean and no share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from covey.config.groups.objectives import DarlingSettings, SEEDSettings, UniqueSettings, UnlikelySettings
from covey.errors import ConfigError
from covey.objective.groups import centred, count, counting, log_softmax_over, precise, same_mode
from covey.objective.interface import BuiltIn, Metrics
from covey.runlog import names


def unique_factors(
    rewards_PG: Tensor, modes_PG: Tensor, mask_PG: Tensor | None = None, *, alpha: float = 1.0
) -> Tensor:
    """f_i^-α for completions with a mode, f_i the share of its mode among the group's completions with one; 1 for the
    others that count, so also in a group without right answers. See `Unique`."""
    kept_PG = counting(rewards_PG, mask_PG)
    right_PG = kept_PG & (modes_PG >= 0)
    sizes_PG = same_mode(modes_PG, kept_PG).sum(dim=-1).to(precise(rewards_PG, kept_PG))
    share_PG = torch.where(right_PG, sizes_PG / count(right_PG), 1.0)
    return share_PG.pow(-alpha).masked_fill(~kept_PG, 0.0)


def darling_advantages(
    rewards_PG: Tensor, modes_PG: Tensor, mask_PG: Tensor | None = None, *, floor: float = 0.0
) -> Tensor:
    """r_i·d_i, centred, with d_i the share of the group's other completions that are of another mode, at least `floor`.

    With n completions of which s_i have the mode of i, d_i = (n - s_i) / (n - 1). A completion without a mode, such as
    a wrong one, has one of its own. In a group of one, d = 1. Equal products give exactly 0.

    Source: Li et al. 2025, Jointly Reinforcing Diversity and Quality (arXiv:2509.02534): reward times normalised
    diversity, centred without the standard deviation; its learned classes of answers are the modes here. Its released
    code has d_i as above, with a floor of 0.1.
    """
    kept_PG = counting(rewards_PG, mask_PG)
    values_PG = precise(rewards_PG, kept_PG)
    n_P1 = kept_PG.sum(dim=-1, keepdim=True).to(values_PG)
    others_PG = n_P1 - same_mode(modes_PG, kept_PG).sum(dim=-1).to(values_PG)
    diversity_PG = torch.where(n_P1 > 1, others_PG / (n_P1 - 1).clamp(min=1), 1.0).clamp(min=floor)
    return centred(values_PG * diversity_PG, kept_PG)


def seed_scales(logps_PG: Tensor, modes_PG: Tensor, kept_PG: Tensor, *, alpha: float = 1.0) -> Tensor:
    """s = 1 / (1 + α·H / log n) of each group, `[P, 1]`, between 1 / (1 + α) and 1.

    H is the entropy over modes, in nats; the mass of a mode is that of its completions under the softmax of their
    log-probs per token. One without a mode has one of its own, so a group without modes and with equal log-probs has
    s = 1 / (1 + α). Groups with at most one completion that counts have 1.

    Args:
        logps_PG: log-probs of the completions under the policy, per token, in nats.
        modes_PG: int64, -1 for none.
        kept_PG: which completions count, n in a group.
        alpha: α.

    Source: Chen et al. 2025, SEED-GRPO (arXiv:2505.12346), as its released code has it: Shannon entropy of masses that
    are weighted by likelihood, per token, with α over the highest entropy (default there: α of about 0.04).
    """
    log_p_PG = log_softmax_over(precise(logps_PG, kept_PG), kept_PG)
    same_PGG = same_mode(modes_PG, kept_PG)
    log_mass_PG = log_p_PG[..., None, :].masked_fill(~same_PGG, -torch.inf).logsumexp(dim=-1)
    # -Σ_modes p log p = -Σ_i p_i log(mass of the mode of i)
    entropy_P1 = -(log_p_PG.exp() * log_mass_PG.masked_fill(~kept_PG, 0.0)).sum(dim=-1, keepdim=True)
    most_P1 = kept_PG.sum(dim=-1, keepdim=True).to(entropy_P1).clamp(min=1).log()
    relative_P1 = torch.where(most_P1 > 0, entropy_P1.clamp(min=0.0) / most_P1, 0.0)
    return 1 / (1 + alpha * relative_P1)


def unlikely_advantages(
    rewards_PG: Tensor, logps_PG: Tensor, mask_PG: Tensor | None = None, *, penalty: float
) -> Tensor:
    """r_i·(1 - γ·rank_i / n), centred: the likelier a completion in its group, the less of its reward it keeps.

    γ is `penalty`. Ranks are 0 for the least likely, by log-probs per token; equal ones share the mean of their ranks.

    Source: He et al. 2025, Rewarding the Unlikely (arXiv:2506.02355), as in the authors' released code, whose division
    by the standard deviation is left out. The paper counts ranks from the likeliest, (G - rank) in place of our rank,
    which differs by γ / n.
    """
    kept_PG = counting(rewards_PG, mask_PG)
    values_PG = precise(rewards_PG, kept_PG)
    both_PGG = kept_PG[..., :, None] & kept_PG[..., None, :]
    below_PG = ((logps_PG[..., None, :] < logps_PG[..., :, None]) & both_PGG).sum(dim=-1)
    equal_PG = ((logps_PG[..., None, :] == logps_PG[..., :, None]) & both_PGG).sum(dim=-1)
    ranks_PG = below_PG.to(values_PG) + (equal_PG.to(values_PG) - 1).clamp(min=0) / 2
    return centred(values_PG * (1 - penalty * ranks_PG / count(kept_PG)), kept_PG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique(UniqueSettings, BuiltIn):
    """A_i·f_i^-α for right completions, A_i for the others, with A_i = r_i - r̄ and f_i the share of a mode among the
    right answers: rare modes weigh more. α = 0 is Dr. GRPO. A group of equal rewards has 0.

    Source: Hu et al. 2026, Rewarding the Rare (arXiv:2601.08763), of whose formula only second-hand accounts were at
    hand: advantages times 1 / f^α, f the size of a cluster of solution strategies that a judge finds, among right and
    wrong answers. Here modes are those of right answers, and f is a share, so a factor is at least 1.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"modes"})

    def advantages(
        self, rewards_PG: Tensor, mask_PG: Tensor, *, modes_PG: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, Metrics, Mapping[str, Tensor]]:
        """See the class. The normalised factors are the column `unique_weight`."""
        modes_PG = given(self, "modes", modes_PG)
        factors_PG = unique_factors(rewards_PG, modes_PG, mask_PG, alpha=self.alpha)
        total_P1 = factors_PG.sum(dim=-1, keepdim=True)
        weights_PG = factors_PG / torch.where(total_P1 > 0, total_P1, 1.0)
        advantages_PG = factors_PG * centred(rewards_PG, counting(rewards_PG, mask_PG))
        return advantages_PG, {}, {names.weight_column(self.NAME): weights_PG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Darling(DarlingSettings, BuiltIn):
    """The advantages of `darling_advantages`."""

    needs: ClassVar[frozenset[str]] = frozenset({"modes"})

    def advantages(
        self, rewards_PG: Tensor, mask_PG: Tensor, *, modes_PG: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, Metrics]:
        """See the class."""
        return darling_advantages(rewards_PG, given(self, "modes", modes_PG), mask_PG, floor=self.floor), {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SEED(SEEDSettings, BuiltIn):
    """s·A_i with A_i = r_i - r̄ and the scale s of the group, see `seed_scales`: prompts on which the policy is
    uncertain weigh less. Within a group, completions weigh the same. A group of equal rewards has 0."""

    needs: ClassVar[frozenset[str]] = frozenset({"modes", "policy"})

    def advantages(
        self,
        rewards_PG: Tensor,
        mask_PG: Tensor,
        *,
        modes_PG: Tensor | None = None,
        policy_logps_PG: Tensor | None,
        lengths_PG: Tensor,
        **_: Any,
    ) -> tuple[Tensor, Metrics]:
        """See the class."""
        logps_PG = per_token(self, policy_logps_PG, lengths_PG)
        kept_PG = counting(rewards_PG, mask_PG)
        scales_P1 = seed_scales(logps_PG, given(self, "modes", modes_PG), kept_PG, alpha=self.alpha)
        counted_P = kept_PG.any(dim=-1)
        metrics = {"objective/prompt_weight": float(scales_P1[counted_P].mean())} if counted_P.any() else {}
        return scales_P1 * centred(rewards_PG, kept_PG), metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlikely(UnlikelySettings, BuiltIn):
    """The advantages of `unlikely_advantages`."""

    needs: ClassVar[frozenset[str]] = frozenset({"policy"})

    def advantages(
        self, rewards_PG: Tensor, mask_PG: Tensor, *, policy_logps_PG: Tensor | None, lengths_PG: Tensor, **_: Any
    ) -> tuple[Tensor, Metrics]:
        """See the class."""
        logps_PG = per_token(self, policy_logps_PG, lengths_PG)
        return unlikely_advantages(rewards_PG, logps_PG, mask_PG, penalty=self.penalty), {}


def given(objective: Any, what: str, values_PG: Tensor | None) -> Tensor:
    """The values.

    Raises:
        ConfigError: there are none.
    """
    if values_PG is None:
        raise ConfigError(f"{type(objective).__name__} needs {what}: pass them.")
    return values_PG


def per_token(objective: Any, logps_PG: Tensor | None, lengths_PG: Tensor) -> Tensor:
    """Log-probs per token.

    Raises:
        ConfigError: there are none.
    """
    return given(objective, "log-probabilities of the completions", logps_PG) / lengths_PG.clamp(min=1)
