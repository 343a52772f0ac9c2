"""The sampler's log-probs against the trainer's: how far apart, and why. Knows tensors, not TRL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.runlog import names


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """The completions of a generation on one process, scored: `[B, T]` each."""

    counted: Tensor
    """Whether the loss counts a token, which is then one that was sampled."""
    sampler: Tensor
    """Log-probs under the sampler; NaN where it could not compute one."""
    trainer: Tensor
    """Under the policy, normalised as the loss does."""
    full: Tensor | None = None
    """The same over all tokens, where that is not what the loss does."""
    cut_off: bool = False
    """Whether the sampler cut tokens off and the loss does not know which."""
    stale: Tensor | None = None
    """Whether a token was sampled with older weights; None for none."""


@dataclass(frozen=True, slots=True)
class Correction:
    """How TRL bounds the ratio of the policy's probability to the sampler's."""

    by_sequence: bool
    """Whether the ratios of a completion's tokens are multiplied."""
    low: float | None
    high: float | None


def measure_gap(
    sample: ScoredSample, correction: Correction, *, last_number_type: float, gather: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """The metrics of the gap, over all processes, by the names in `covey.runlog.names`.

    Each part is a mean over tokens, in nats:

    - `number_type`: absolute difference at equal weights and support, of the tokens that have such; else the last one.
    - `truncation`: -log of the probability that the tokens that could be sampled have together under the policy. This
      is what the ratio would be off with log-probs over all tokens; it is no part of the gap with one support.
      Where these tokens are not known, it is the mean of the signed difference, which number types do not move, and
      `number_type` is what is left.
    - `staleness`: what the stale tokens' difference exceeds `number_type` by, over all tokens.

    Args:
        sample: of this process.
        correction: whose bounds `sampling/ratio/outside` counts by, in tokens or completions.
        last_number_type: the newest value of that part, for a generation with stale tokens only.
        gather: concatenates a tensor over all processes.

    Returns:
        None of the metrics where no process has a token that counts.
    """
    known_BT = sample.counted.bool() & ~sample.sampler.isnan()
    stale_BT = torch.zeros_like(known_BT) if sample.stale is None else sample.stale.to(known_BT.device) & known_BT
    sampler_BT = sample.sampler.float().nan_to_num()
    log_ratio_BT = torch.where(known_BT, sample.trainer.float() - sampler_BT, 0.0)
    apart_BT, cut_BT = log_ratio_BT.abs(), torch.zeros_like(log_ratio_BT)
    if sample.cut_off:
        cut_BT, apart_BT = -log_ratio_BT, apart_BT + log_ratio_BT
    elif sample.full is not None:
        cut_BT = torch.where(known_BT, (sample.trainer - sample.full).float(), 0.0)
    judged = log_ratio_BT.sum(1)[known_BT.any(1)] if correction.by_sequence else log_ratio_BT[known_BT]
    low = -torch.inf if correction.low is None else correction.low
    high = torch.inf if correction.high is None else correction.high
    outside = (judged.exp() < low) | (judged.exp() > high)
    ratios = log_ratio_BT[known_BT].exp()
    ends = torch.stack([ratios.min(), -ratios.max()]) if len(ratios) else ratios.new_full((2,), torch.inf)
    sums = torch.stack(
        [
            *(known_BT.sum(), log_ratio_BT.abs().sum(), cut_BT.sum(), ratios.sum(), outside.sum()),
            *(ratios.new_tensor(len(judged)), stale_BT.sum(), apart_BT[stale_BT].sum(), apart_BT[~stale_BT].sum()),
        ]
    )
    together = gather(torch.cat([sums, ends])[None])
    count, gap, cut, ratio, out, all_judged, stale, apart_stale, apart_fresh = together[:, :-2].sum(0).tolist()
    lowest, highest = together[:, -2:].amin(0).tolist()
    if not count:
        return {}
    number_type = apart_fresh / (count - stale) if count > stale else last_number_type
    older = max(apart_stale / stale - number_type, 0.0) * stale / count if stale else 0.0
    values = (gap / count, number_type, cut / count, older)
    return dict(zip((names.SAMPLING_GAP, *names.SAMPLING_GAP_PARTS), values, strict=True)) | {
        f"{names.SAMPLING_RATIO}min": lowest,
        f"{names.SAMPLING_RATIO}mean": ratio / count,
        f"{names.SAMPLING_RATIO}max": -highest,
        f"{names.SAMPLING_RATIO}outside": out / all_judged,
    }
