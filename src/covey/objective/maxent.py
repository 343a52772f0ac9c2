"""MaxEnt-GRPO: the policy is fitted to a maximum-entropy target over the completions of each group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from covey.config.groups.objectives import MAXENT_FITS, MAXENT_LOSSES, LengthReduction, MaxEntSettings
from covey.config.values import check_choice
from covey.errors import ConfigError
from covey.objective.groups import check_maxent_settings, counting, log_softmax_over, maxent_weights, widest_dtype
from covey.objective.interface import BuiltIn, Metrics
from covey.runlog import names


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxEnt(MaxEntSettings, BuiltIn):
    """Fits the policy to the target w of `maxent_weights`, by advantages for TRL's loss.

    - `fit="mle"` minimises -Σ_i w_i s_i by the advantages G·w_i;
    - `fit="listwise"` minimises the cross-entropy -Σ_i w_i log p_i between the target and the policy's own distribution
      over the group, p = softmax(s), by the advantages G·(w_i - p_i);

    where s_i is the log-probability of completion i under the policy, reduced over tokens as in the loss
    (`MAXENT_LOSSES`). The gradients are exact if a generation batch is used for one optimiser step (ratios of 1); in
    further steps the loss is a clipped surrogate with w and p from generation.
    """

    length_form: LengthReduction = "mean"
    """How the loss reduces over the tokens of a completion; `for_run` sets it."""

    def __post_init__(self) -> None:
        check_maxent_settings(self.tau, 0.0, self.q_temperature, self.q_epsilon, group_size=1)
        check_choice("MaxEnt: fit", self.fit, MAXENT_FITS)

    @property
    def needs(self) -> frozenset[str]:
        """The policy's log-probabilities are needed for p only; without them, metrics of the policy are omitted."""
        return frozenset({"reference", "correct"} | ({"policy"} if self.fit == "listwise" else set()))

    def for_run(self, *, loss_type: str, **run: Any) -> Self:
        """With the `length_form` of the loss, after checking that the run supports this objective."""
        return replace(BuiltIn.for_run(self, loss_type=loss_type, **run), length_form=MAXENT_LOSSES[loss_type])

    def advantages(
        self,
        rewards_PG: Tensor,
        mask_PG: Tensor,
        *,
        ref_logps_PG: Tensor | None,
        policy_logps_PG: Tensor | None,
        lengths_PG: Tensor,
        beta: float,
        correct_PG: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Metrics, Mapping[str, Tensor]]:
        """G·w, or G·(w - p); 0 where the mask is false. The weights w are the column `maxent_weight`. See the class."""
        mask_PG = counting(rewards_PG, mask_PG)
        lengths_PG = lengths_PG.clamp(min=1)
        if ref_logps_PG is not None and self.length_normalize_ref:
            ref_logps_PG = ref_logps_PG / lengths_PG
        log_w_PG = maxent_weights(
            rewards_PG.to(widest_dtype(rewards_PG)),
            ref_logps_PG,
            tau=self.tau,
            beta=beta,
            q_temperature=self.q_temperature,
            q_epsilon=self.q_epsilon,
            mask_PG=mask_PG,
            log=True,
        )
        log_p_PG = None
        if policy_logps_PG is not None:
            policy_logps_PG = policy_logps_PG / lengths_PG if self.length_form == "mean" else policy_logps_PG
            log_p_PG = log_softmax_over(policy_logps_PG.to(log_w_PG.dtype), mask_PG)
        elif self.fit == "listwise":
            raise ConfigError("MaxEnt with fit=listwise needs the policy's log-probabilities: pass policy_logps_PG.")

        w_PG = log_w_PG.exp()
        fitted_PG = w_PG - log_p_PG.exp() if self.fit == "listwise" and log_p_PG is not None else w_PG
        metrics = dict(_metrics(log_w_PG, log_p_PG, mask_PG, correct_PG))
        if metrics:  # of the reward 1 over 0, where q has no floor
            total = self.q_temperature * (self.tau + beta)
            metrics["objective/log_odds"] = 1 / total if total else math.inf
        return rewards_PG.shape[-1] * fitted_PG, metrics, {names.weight_column(self.NAME): w_PG}


def _metrics(log_w_PG: Tensor, log_p_PG: Tensor | None, mask_PG: Tensor, correct_PG: Tensor | None) -> Metrics:
    """Means over the groups with a completion that counts; empty without such groups. Entropies in nats.

    - `target_entropy`: H(w), and `effective_completions`: exp H(w);
    - `weight_on_correct`: the weight on right completions, 0 in a group without any;
    - `policy_entropy_group`: H(p), and `target_policy_kl`: KL(w ‖ p), if p is known.
    """
    counted_P = mask_PG.any(dim=-1)
    if not counted_P.any():
        return {}
    w_PG = log_w_PG.exp()
    entropy_P = -_expectation(w_PG, log_w_PG)
    values_P = {"target_entropy": entropy_P, "effective_completions": entropy_P.exp()}
    if correct_PG is not None:
        values_P["weight_on_correct"] = (w_PG * correct_PG).sum(dim=-1)
    if log_p_PG is not None:
        values_P["policy_entropy_group"] = -_expectation(log_p_PG.exp(), log_p_PG)
        values_P["target_policy_kl"] = _expectation(w_PG, log_w_PG) - _expectation(w_PG, log_p_PG)
    return {f"objective/{name}": float(value_P[counted_P].mean()) for name, value_P in values_P.items()}


def _expectation(weights_PG: Tensor, values_PG: Tensor) -> Tensor:
    """Σ_i weight_i · value_i, where 0 · -inf is 0."""
    return (weights_PG * values_PG.masked_fill(weights_PG == 0, 0.0)).sum(dim=-1)
