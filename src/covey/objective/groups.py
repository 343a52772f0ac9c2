"""Sums and distributions over the completions of a group, and how a step weighs them.

Completions that are excluded enter no sum, and are 0 in every result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from covey.config.groups.objectives import floor_problem
from covey.errors import ConfigError

TINY = 1e-30
"""For a smaller sum of temperatures the limit is used: the reciprocal could overflow."""


def maxent_weights(
    rewards_PG: Tensor,
    ref_logps_PG: Tensor | None,
    *,
    tau: float,
    beta: float,
    q_temperature: float = 1.0,
    q_epsilon: float = 0.0,
    mask_PG: Tensor | None = None,
    log: bool = False,
) -> Tensor:
    """The weight of each completion of a group under the target.

    With q = softmax(r / q_temperature) over the group, then q ← (1 - G·ε)·q + ε, the weights are

        w_i ∝ q_i^(1 / (τ + β)) · π_ref(o_i)^(β / (τ + β)),

    the distribution over the group that maximises E_w[log q] + τ·H(w) - β·KL(w ‖ π_ref), with π_ref normalised in the
    group. Limits:

    - τ = β = 0: uniform on the completions of highest reward;
    - τ → ∞: uniform;
    - β → ∞: π_ref, normalised in the group.

    Args:
        rewards_PG: rewards, `[P, G]`. A completion whose reward is not finite is excluded.
        ref_logps_PG: log-probability of each completion under the reference, in nats, without length
            normalisation. -inf gives the weight 0 while β > 0, unless it is -inf for the whole group, where it is
            ignored. May be None for β = 0.
        tau: entropy weight τ, at least 0, in units of log q.
        beta: trust-region weight β, at least 0, in the same units.
        q_temperature: temperature of the softmax, above 0, in units of reward.
        q_epsilon: floor ε under q, at least 0; G·ε must be below 1.
        mask_PG: which completions count; the others are excluded before any normalisation.
        log: whether to return the logarithms, -inf where a weight is 0.

    Returns:
        Weights `[P, G]`. Each row sums to 1 over the completions that count; a row without any is all zero.

    Raises:
        ConfigError: a setting is out of range, or the reference is missing.
    """
    check_maxent_settings(tau, beta, q_temperature, q_epsilon, rewards_PG.shape[-1])
    kept_PG = counting(rewards_PG, mask_PG)
    out_dtype = torch.promote_types(rewards_PG.dtype, torch.float32)
    dtype = widest_dtype(rewards_PG)
    rewards_PG = rewards_PG.to(dtype).masked_fill(~kept_PG, -math.inf)
    on_q, on_ref = _exponents(tau, beta)

    logits_PG = torch.zeros_like(rewards_PG)
    if on_q == math.inf:  # the limit: only the best remain
        best_P1 = rewards_PG.amax(dim=-1, keepdim=True)
        logits_PG = logits_PG.masked_fill(rewards_PG < best_P1, -math.inf)
    elif on_q > 0:
        log_q_PG = _log_q(rewards_PG, kept_PG, q_temperature, q_epsilon)
        # Relative to the best one, so that equal values cancel exactly for any exponent.
        logits_PG = on_q * (log_q_PG - finite_max(log_q_PG))
    if beta > 0:
        if ref_logps_PG is None:
            raise ConfigError(
                f"MaxEnt with beta={beta:g} needs log-probabilities of the reference: pass them, or set beta to 0."
            )
        relative_PG = relative_ref(ref_logps_PG.to(dtype), kept_PG, logits_PG)
        impossible_PG = relative_PG == -math.inf  # also where the exponent is 0 (τ → ∞), as in the limit
        logits_PG = logits_PG + (on_ref * relative_PG).masked_fill(impossible_PG, -math.inf)
    log_w_PG = log_softmax_over(logits_PG, kept_PG).to(out_dtype)
    return log_w_PG if log else log_w_PG.exp()


def log_softmax_over(logits_PG: Tensor, kept_PG: Tensor) -> Tensor:
    """Log-softmax over the kept entries of each row: -inf for the others, and for a row that keeps none."""
    logits_PG = logits_PG.masked_fill(~kept_PG, -math.inf)
    shifted_PG = logits_PG - finite_max(logits_PG)
    total_P1 = torch.logsumexp(shifted_PG, dim=-1, keepdim=True)
    return shifted_PG - total_P1.masked_fill(total_P1 == -math.inf, 0.0)


def check_maxent_settings(tau: float, beta: float, q_temperature: float, q_epsilon: float, group_size: int) -> None:
    """Check the ranges of MaxEnt's settings.

    Raises:
        ConfigError: one is out of range; with its name and a valid value.
    """
    for name, value in (("tau", tau), ("beta", beta)):
        if not value >= 0:
            raise ConfigError(f"MaxEnt: {name}={value:g} must be 0 or more.")
    if tau == math.inf and beta == math.inf:
        raise ConfigError("MaxEnt: tau and beta cannot both be infinite: the limit is undefined.")
    if not (q_temperature > 0 and math.isfinite(q_temperature)):
        raise ConfigError(f"MaxEnt: q_temperature={q_temperature:g} must be a finite number above 0, such as 1.0.")
    if not q_epsilon >= 0:
        raise ConfigError(f"MaxEnt: q_epsilon={q_epsilon:g} must be 0 or more.")
    if (problem := floor_problem(q_epsilon, group_size)) is not None:
        raise ConfigError(f"MaxEnt: q_epsilon{problem}")


def widest_dtype(tensor: Tensor) -> torch.dtype:
    """Double precision if the device supports it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def _exponents(tau: float, beta: float) -> tuple[float, float]:
    """The exponents of q and of π_ref: 1 / (τ + β) and β / (τ + β), with their limits."""
    if beta == math.inf:
        return 0.0, 1.0
    total = tau + beta
    if total == 0:
        return math.inf, 0.0
    return (1 / total if total > TINY else math.inf), beta / total


def _log_q(rewards_PG: Tensor, kept_PG: Tensor, temperature: float, epsilon: float) -> Tensor:
    """Log of the floored softmax over the kept rewards."""
    log_q_PG = log_softmax_over(rewards_PG / temperature, kept_PG)
    if epsilon == 0:
        return log_q_PG
    floors_P1 = kept_PG.sum(dim=-1, keepdim=True).to(log_q_PG) * epsilon
    floor_PG = torch.full_like(log_q_PG, math.log(epsilon))
    return torch.logaddexp(torch.log1p(-floors_P1) + log_q_PG, floor_PG).masked_fill(~kept_PG, -math.inf)


def relative_ref(ref_logps_PG: Tensor, kept_PG: Tensor, logits_PG: Tensor) -> Tensor:
    """The reference's log-probabilities relative to the group's highest; all zero if they are all -inf.

    Only completions with a non-zero weight by their rewards count.
    """
    possible_PG = kept_PG & (logits_PG > -math.inf)
    within_PG = ref_logps_PG.masked_fill(~possible_PG, -math.inf)
    relative_PG = within_PG - finite_max(within_PG)
    all_impossible_P1 = (within_PG == -math.inf).all(dim=-1, keepdim=True)
    return torch.where(all_impossible_P1, torch.zeros_like(relative_PG), relative_PG)


def finite_max(values_PG: Tensor) -> Tensor:
    """The largest value of each row, `[P, 1]`; 0 if all are -inf."""
    highest_P1 = values_PG.amax(dim=-1, keepdim=True)
    return highest_P1.masked_fill(highest_P1 == -math.inf, 0.0)


def counting(rewards_PG: Tensor, mask_PG: Tensor | None = None) -> Tensor:
    """Which completions count: those of the mask with a finite reward."""
    finite_PG = torch.isfinite(rewards_PG)
    return finite_PG if mask_PG is None else finite_PG & mask_PG.bool()


def precise(values_PG: Tensor, kept_PG: Tensor) -> Tensor:
    """The values in double precision, where the device has it, and 0 where they do not count."""
    return values_PG.to(widest_dtype(values_PG)).masked_fill(~kept_PG, 0.0)


def count(kept_PG: Tensor) -> Tensor:
    """How many completions count, `[P, 1]`, at least 1."""
    return kept_PG.sum(dim=-1, keepdim=True).clamp(min=1)


def mean(values_PG: Tensor, kept_PG: Tensor) -> Tensor:
    """The mean over those that count, `[P, 1]`; 0 without any."""
    return values_PG.masked_fill(~kept_PG, 0.0).sum(dim=-1, keepdim=True) / count(kept_PG)


def centred(values_PG: Tensor, kept_PG: Tensor) -> Tensor:
    """The values less their mean: exactly 0 in a group of equal values."""
    values_PG = precise(values_PG, kept_PG)
    highest_P1 = values_PG.masked_fill(~kept_PG, -torch.inf).amax(dim=-1, keepdim=True)
    relative_PG = values_PG - torch.where(kept_PG.any(dim=-1, keepdim=True), highest_P1, 0.0)
    return (relative_PG - mean(relative_PG, kept_PG)).masked_fill(~kept_PG, 0.0)


def same_mode(modes_PG: Tensor, kept_PG: Tensor) -> Tensor:
    """Which pairs of completions that count have the same answer mode, `[P, G, G]`. One without a mode (-1) has a mode
    of its own."""
    named_PG = kept_PG & (modes_PG >= 0)
    equal_PGG = (modes_PG[..., :, None] == modes_PG[..., None, :]) & named_PG[..., :, None] & named_PG[..., None, :]
    return equal_PGG | torch.diag_embed(kept_PG)


def weight_metrics(
    weights_PG: Tensor, kept_PG: Tensor, lengths_PG: Tensor, correct_PG: Tensor | None
) -> Mapping[str, float]:
    """Means over the groups with a completion that counts; empty without such groups.

    - `effective_completions`: exp H(w), from 1 to the completions that count;
    - `incorrect_mass`: the weight on wrong completions;
    - `length_tilt`: the mean length under w relative to the plain one, less 1: 0.1 prefers 10% longer completions.

    Args:
        weights_PG: a distribution over each group.
        kept_PG: which completions count.
        lengths_PG: in tokens.
        correct_PG: which are right, where it is known.

    Source of the first two: "Exploration Should Act at the Group Level in RL LLM Fine-Tuning" (2026), appendix C.
    """
    counted_P = kept_PG.any(dim=-1)
    if not counted_P.any():
        return {}
    w_PG, lengths_PG = precise(weights_PG, kept_PG), precise(lengths_PG, kept_PG)
    values_P = {"effective_completions": torch.special.entr(w_PG).sum(dim=-1).exp()}
    if correct_PG is not None:
        values_P["incorrect_mass"] = (w_PG * ~correct_PG.bool()).sum(dim=-1)
    plain_P = mean(lengths_PG, kept_PG)[..., 0]
    values_P["length_tilt"] = (w_PG * lengths_PG).sum(dim=-1) / plain_P.clamp(min=1) - 1
    return {f"objective/{name}": float(value_P[counted_P].mean()) for name, value_P in values_P.items()}


def implied_weights(advantages_PG: Tensor | None, rewards_PG: Tensor, mask_PG: Tensor) -> Tensor:
    """The weights with which advantages aggregate A_i = r_i - r̄: w_i ∝ max(0, advantage_i / A_i).

    Completions with A_i = 0 have none. Uniform over those that count where no advantage is left, as in a group of equal
    rewards, and without advantages.
    """
    kept_PG = counting(rewards_PG, mask_PG)
    uniform_PG = precise(kept_PG, kept_PG)
    if advantages_PG is None:
        return uniform_PG / uniform_PG.sum(dim=-1, keepdim=True).clamp(min=1)
    plain_PG = centred(rewards_PG, kept_PG)
    ratios_PG = precise(advantages_PG.detach(), kept_PG) / torch.where(plain_PG == 0, 1.0, plain_PG)
    ratios_PG = ratios_PG.masked_fill(plain_PG == 0, 0.0).clamp(min=0.0)
    ratios_PG = torch.where(ratios_PG.sum(dim=-1, keepdim=True) > 0, ratios_PG, uniform_PG)
    return ratios_PG / ratios_PG.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(ratios_PG.dtype).tiny)
