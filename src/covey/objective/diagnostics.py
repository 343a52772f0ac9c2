"""How a step weighs the completions of its groups: the same numbers for every objective."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from covey.objective.groups import centred, counting, mean, precise


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
