"""Sums over the completions of a group that count. Excluded completions enter none, and are 0 in every result."""

from __future__ import annotations

import torch
from torch import Tensor

from covey.objective.weights import widest_dtype


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
