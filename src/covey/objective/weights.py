"""The target distribution of MaxEnt-GRPO over the completions of a group."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from covey.config.groups.objective.maxent import floor_problem
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

    Returns:
        Weights `[P, G]`. Each row sums to 1 over the completions that count; a row without any is all zero.

    Raises:
        ConfigError: a setting is out of range, or the reference is missing.
    """
    return maxent_log_weights(
        rewards_PG, ref_logps_PG, tau=tau, beta=beta, q_temperature=q_temperature, q_epsilon=q_epsilon, mask_PG=mask_PG
    ).exp()


def maxent_log_weights(
    rewards_PG: Tensor,
    ref_logps_PG: Tensor | None,
    *,
    tau: float,
    beta: float,
    q_temperature: float = 1.0,
    q_epsilon: float = 0.0,
    mask_PG: Tensor | None = None,
) -> Tensor:
    """The logarithm of `maxent_weights`, for the same arguments; -inf where the weight is 0."""
    check_settings(tau, beta, q_temperature, q_epsilon, rewards_PG.shape[-1])
    kept_PG = torch.isfinite(rewards_PG)
    if mask_PG is not None:
        kept_PG = kept_PG & mask_PG.bool()
    out_dtype = torch.promote_types(rewards_PG.dtype, torch.float32)
    precise = widest_dtype(rewards_PG)
    rewards_PG = rewards_PG.to(precise).masked_fill(~kept_PG, -math.inf)
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
        relative_PG = relative_ref(ref_logps_PG.to(precise), kept_PG, logits_PG)
        impossible_PG = relative_PG == -math.inf  # also where the exponent is 0 (τ → ∞), as in the limit
        logits_PG = logits_PG + (on_ref * relative_PG).masked_fill(impossible_PG, -math.inf)
    return log_softmax_over(logits_PG, kept_PG).to(out_dtype)


def log_softmax_over(logits_PG: Tensor, kept_PG: Tensor) -> Tensor:
    """Log-softmax over the kept entries of each row: -inf for the others, and for a row that keeps none."""
    logits_PG = logits_PG.masked_fill(~kept_PG, -math.inf)
    shifted_PG = logits_PG - finite_max(logits_PG)
    total_P1 = torch.logsumexp(shifted_PG, dim=-1, keepdim=True)
    return shifted_PG - total_P1.masked_fill(total_P1 == -math.inf, 0.0)


def check_settings(tau: float, beta: float, q_temperature: float, q_epsilon: float, group_size: int) -> None:
    """Check the ranges of the settings.

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
