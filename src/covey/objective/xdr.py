"""xDr.GRPO: Dr. GRPO with a maximum-entropy distribution over the completions of each group as weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from covey.config.groups.objectives import XDRSettings
from covey.errors import ConfigError
from covey.objective.by_modes import given, per_token
from covey.objective.groups import (
    TINY,
    centred,
    count,
    counting,
    finite_max,
    mean,
    precise,
    relative_ref,
    same_mode,
    widest_dtype,
)
from covey.objective.interface import BuiltIn, Metrics
from covey.runlog import names


def xdr_weights(
    rewards_PG: Tensor | ArrayLike,
    lengths_PG: Tensor | ArrayLike,
    *,
    tau: float | Tensor,
    max_length: float,
    lam: float = 0.0,
    ref_logps_PG: Tensor | ArrayLike | None = None,
    mask_PG: Tensor | ArrayLike | None = None,
) -> Tensor:
    """The weight of each completion of a group.

    With the utilities U_i = (r_i - r̄)·T_i / T_max, which are those of Dr. GRPO's loss on policy, and the reference's
    log-prob per token s_i = log π_ref(o_i) / T_i, the weights are

        w = softmax(U / (τ + λ) + λ / (τ + λ)·s),

    the distribution over the group that maximises ⟨w, U⟩ + τ·H(w) - λ·KL(w ‖ softmax(s)). Limits:

    - τ → ∞: uniform, which is Dr. GRPO;
    - τ = λ = 0: uniform on the completions of highest utility;
    - λ → ∞: softmax(s).

    With equal rewards all utilities are 0, and the reference alone decides, or none does.

    Args:
        rewards_PG: rewards, `[P, G]`, or `[G]` of one group: a tensor, an array or lists, as all that follow. One that
            is not finite excludes its completion.
        lengths_PG: completion tokens in the loss.
        tau: temperature τ, at least 0, in units of utility; a number, or one per group, `[P, 1]`.
        max_length: T_max, in tokens.
        lam: weight λ of the reference, at least 0, in the same units.
        ref_logps_PG: log-prob of each completion under the reference, summed over its tokens, in nats; needed for
            λ > 0. -inf gives the weight 0, unless it is -inf for the whole group, where it is ignored.
        mask_PG: which completions count; the others are excluded before any normalisation.

    Returns:
        Weights of the shape of the rewards. Each group's sum to 1 over the completions that count; a group without any
        has zeros.

    Raises:
        ConfigError: a setting is out of range, the reference is missing, or the shapes differ.

    Source: "Exploration Should Act at the Group Level in RL LLM Fine-Tuning" (2026), equation 4 (weights), appendix A
    (reference tilt); the repository liv-daliberti/maxent-grpo has its text.
    """
    if not max_length > 0:
        raise ConfigError(f"xdr_weights: max_length={max_length:g} must be above 0.")
    rewards_PG = torch.as_tensor(rewards_PG)
    lengths_PG = _like(lengths_PG, rewards_PG)
    kept_PG = counting(rewards_PG, None if mask_PG is None else _like(mask_PG, rewards_PG))
    utilities_PG = centred(rewards_PG, kept_PG) * precise(lengths_PG, kept_PG) / max_length
    s_PG = None if ref_logps_PG is None else _like(ref_logps_PG, rewards_PG) / lengths_PG.clamp(min=1)
    unnormalised_PG = _tilted(utilities_PG, s_PG, kept_PG, tau, lam)
    total_P1 = unnormalised_PG.sum(dim=-1, keepdim=True)
    weights_PG = unnormalised_PG / torch.where(total_P1 > 0, total_P1, 1.0)
    return weights_PG.to(torch.promote_types(rewards_PG.dtype, torch.float32))


def _like(values_PG: Tensor | ArrayLike, rewards_PG: Tensor) -> Tensor:
    """As a tensor, of the shape and on the device of the rewards."""
    values_PG = torch.as_tensor(values_PG, device=rewards_PG.device)
    try:
        return values_PG.broadcast_to(rewards_PG.shape)
    except RuntimeError:
        raise ConfigError(
            f"xdr_weights: rewards of shape {tuple(rewards_PG.shape)} cannot go with lengths, log-probs or a mask of "
            f"shape {tuple(values_PG.shape)}: each completion has one of each."
        ) from None


def _tilted(utilities_PG: Tensor, s_PG: Tensor | None, kept_PG: Tensor, tau: float | Tensor, lam: float) -> Tensor:
    """The weights times a factor of the group, so that the largest is 1; all 1 where they are uniform."""
    tau_P1 = tau if isinstance(tau, Tensor) else utilities_PG.new_full((*utilities_PG.shape[:-1], 1), tau)
    if not (bool((tau_P1 >= 0).all()) and lam >= 0):
        raise ConfigError(f"xDr.GRPO: tau and lam must be 0 or more; they are {_shown(tau)} and {lam:g}.")
    if math.isinf(lam) and bool(torch.isinf(tau_P1).any()):
        raise ConfigError("xDr.GRPO: tau and lam cannot both be infinite: the limit is undefined.")
    scale_P1 = tau_P1.to(utilities_PG) + lam
    below_PG = utilities_PG.masked_fill(~kept_PG, -math.inf)
    below_PG = below_PG - finite_max(below_PG)  # relative to the best, so that ties are exact for any scale
    only_best_PG = torch.where(below_PG < 0, -math.inf, 0.0)
    logits_PG = torch.where(scale_P1 > TINY, below_PG / scale_P1.clamp(min=TINY), only_best_PG.to(below_PG))
    logits_PG = logits_PG.masked_fill(~kept_PG, -math.inf)
    if lam > 0:
        if s_PG is None:
            raise ConfigError(f"xDr.GRPO with lam={lam:g} needs log-probabilities of the reference: pass them.")
        share_P1 = torch.ones_like(scale_P1) if math.isinf(lam) else lam / scale_P1
        relative_PG = relative_ref(s_PG.to(logits_PG), kept_PG, logits_PG)
        impossible_PG = relative_PG == -math.inf  # also where the exponent is 0, as in the limit
        logits_PG = logits_PG + (share_P1 * relative_PG).masked_fill(impossible_PG, -math.inf)
    return (logits_PG - finite_max(logits_PG)).exp()


def _shown(tau: float | Tensor) -> str:
    return f"{tau.min().item():g} at least" if isinstance(tau, Tensor) else f"{tau:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class XDR(XDRSettings, BuiltIn):
    """n·w_i·A_i with A_i = r_i - r̄, n the completions that count, and the weights of `xdr_weights`, as constants.

    Under a loss of type `grpo`, which divides by a completion's own length, T_i / T_max is 1. Equal rewards give
    exactly 0, and τ = ∞ exactly the advantages of Dr. GRPO. The weights are those of generation: they stay in further
    steps on the same completions, and if training lags behind.

    - `adaptive`: τ_x = τ / log(1 + κ_x), with κ_x the group's distinct modes of right answers, at least 1.
    - `keep_prompt_weight`: the advantages of a group are rescaled to Σ|A_i|.

    Source: see `xdr_weights`; the adaptive temperature is in its appendix A, the prompt's weight is ours.
    """

    max_length: int | None = None
    """T_max; None for a loss in which all completions have the length share 1. `for_run` sets it."""

    @property
    def needs(self) -> frozenset[str]:
        """Modes if τ is adaptive, and the reference if it counts."""
        return frozenset(["modes"] * self.adaptive + ["reference_logps"] * (self.reference > 0))

    def for_run(self, *, loss_type: str, max_completion_length: int | None = None, **run: Any) -> Self:
        """With the length share of the loss, after checking that the run supports this objective."""
        limit = max_completion_length
        checked = BuiltIn.for_run(self, loss_type=loss_type, max_completion_length=limit, **run)
        return replace(checked, max_length=limit if loss_type == "dr_grpo" else None)

    def advantages(
        self,
        rewards_PG: Tensor,
        mask_PG: Tensor,
        *,
        lengths_PG: Tensor,
        ref_logps_PG: Tensor | None = None,
        modes_PG: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Metrics, Mapping[str, Tensor]]:
        """See the class. The weights are the column `xdr_weight`; the metric `log_odds` is the mean length share over
        τ + λ: what a right completion's weight is over a wrong one's, as a logarithm, with 0/1 rewards."""
        kept_PG = counting(rewards_PG, mask_PG)
        plain_PG = centred(rewards_PG, kept_PG)
        share_PG = precise(lengths_PG, kept_PG) / self.max_length if self.max_length else precise(kept_PG, kept_PG)
        tau_P1 = self._temperatures(modes_PG, kept_PG)
        s_PG = per_token(self, ref_logps_PG, lengths_PG) if self.reference > 0 else None
        unnormalised_PG = _tilted(plain_PG * share_PG, s_PG, kept_PG, tau_P1, self.reference)
        n_P1 = count(kept_PG)
        factor_PG = unnormalised_PG / (unnormalised_PG.sum(dim=-1, keepdim=True) / n_P1).clamp(min=TINY)
        advantages_PG = factor_PG * plain_PG
        if self.keep_prompt_weight:
            before_P1, after_P1 = (each.abs().sum(dim=-1, keepdim=True) for each in (plain_PG, advantages_PG))
            advantages_PG = advantages_PG * torch.where(after_P1 > 0, before_P1 / after_P1.clamp(min=TINY), 1.0)
        log_odds_P1 = mean(share_PG, kept_PG) / (tau_P1 + self.reference)
        counted_P = kept_PG.any(dim=-1)
        metrics = {"objective/log_odds": float(log_odds_P1[counted_P].mean())} if counted_P.any() else {}
        return advantages_PG, metrics, {names.weight_column(self.NAME): factor_PG / n_P1}

    def _temperatures(self, modes_PG: Tensor | None, kept_PG: Tensor) -> Tensor:
        if not self.adaptive:
            return kept_PG.new_full((len(kept_PG), 1), self.tau, dtype=widest_dtype(kept_PG))
        modes_PG = given(self, "the modes of right answers", modes_PG)
        sizes_PG = precise(same_mode(modes_PG, kept_PG).sum(dim=-1), kept_PG & (modes_PG >= 0))
        distinct_P1 = torch.where(sizes_PG > 0, 1 / sizes_PG, 0.0).sum(dim=-1, keepdim=True).round()
        return self.tau / torch.log1p(distinct_P1.clamp(min=1))
