"""Drawing tokens from logits: temperature, repetition penalty, top-k, top-p, min-p, and a draw that costs one number.

A token is drawn by looking one random number per row up in the running sum of its weights, rather than by making a
random number for every token of the vocabulary: the distribution is the same, and the random numbers of a row do not
depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes the tokens so far `[b, S]`, padded on the left as for `generate`, and the logits `[b, V]` of what comes next in
float32; returns logits `[b, V]`, and may change those it was given. transformers' own processors fit."""

SHORT = 1e-12


@runtime_checkable
class RowAware(Protocol):
    """A logits processor that is told which rows it is asked about, for one that keeps something per row."""

    def select_rows(self, rows_b: torch.Tensor) -> None:
        """Take note that from the next call on row `i` of the batch is completion `rows_b[i]` of all those asked for.

        Called before the first token and whenever completions have entered, ended or changed places. A completion
        that has ended does not come back.
        """


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw a token. Temperature 0 takes the likeliest."""

    temperature: float = 1.0
    top_k: int = 0
    """Draw from so many likeliest tokens; 0 means all."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that make up this share of the probability."""
    min_p: float = 0.0
    """Draw from tokens at least this many times as likely as the likeliest."""
    repetition_penalty: float = 1.0
    """Divides a positive logit of a token that was there before, and multiplies a negative one."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token per row."""

    tokens_b: torch.Tensor
    logps_b: torch.Tensor | None
    """Log-probabilities at the sampling temperature (at 1 where that is 0), before top-k, top-p and min-p."""
    sound_b: torch.Tensor
    """Whether the row's logits were a distribution: at least one finite, none NaN."""


def process(
    logits_bV: torch.Tensor,
    sequences_bS: torch.Tensor,
    starts_b: torch.Tensor,
    sampling: Sampling,
    processors: Sequence[LogitsProcessor],
) -> torch.Tensor:
    """Apply the repetition penalty, then the processors, to logits in float32, which may be changed.

    Args:
        logits_bV: what the model said.
        sequences_bS: the tokens so far, padded on the left.
        starts_b: where each row's own tokens begin.
        sampling: holds the penalty.
        processors: applied in order.
    """
    if sampling.repetition_penalty != 1.0:
        column_S = torch.arange(sequences_bS.shape[1], device=sequences_bS.device)
        own_bS = column_S >= starts_b[:, None]
        seen_bS = torch.where(own_bS, sequences_bS, sequences_bS[:, -1:])  # padding was never said
        found_bS = logits_bV.gather(1, seen_bS)
        penalty = sampling.repetition_penalty
        logits_bV.scatter_(1, seen_bS, torch.where(found_bS < 0, found_bS * penalty, found_bS / penalty))
    for processor in processors:
        logits_bV = processor(sequences_bS, logits_bV)
    return logits_bV


def draw(logits_bV: torch.Tensor, uniform_b: torch.Tensor, sampling: Sampling, *, logps: bool) -> Drawn:
    """Draw a token per row.

    The steps and their order are those of transformers' `generate`: temperature, top-k, top-p, min-p, each on what
    the one before has left. Where logits are exactly equal at the edge of top-k, as many are kept as make k.

    Args:
        logits_bV: processed logits in float32; changed in place.
        uniform_b: random numbers from 0 up to but not including 1, in float64; not read at temperature 0.
        sampling: how.
        logps: whether to give log-probabilities.
    """
    if sampling.temperature == 0:
        best_b = logits_bV.argmax(-1)
        highest_b = logits_bV.gather(1, best_b[:, None]).squeeze(1)
        logps_b = highest_b - torch.logsumexp(logits_bV, -1) if logps else None
        return Drawn(best_b, logps_b, highest_b.isfinite())
    if sampling.temperature != 1.0:
        logits_bV.div_(sampling.temperature)
    truncated = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
    normaliser_b = torch.logsumexp(logits_bV, -1) if logps and truncated else None
    kept_bK, ids_bK = _likeliest(logits_bV, sampling)
    highest_b = kept_bK[:, :1] if ids_bK is not None else kept_bK.amax(-1, keepdim=True)
    weights_bK = torch.exp(kept_bK - highest_b)
    if sampling.min_p > 0:
        weights_bK.masked_fill_(weights_bK < sampling.min_p, 0.0)
    chosen_b, totals_b = _look_up(weights_bK, uniform_b)
    tokens_b = chosen_b if ids_bK is None else ids_bK.gather(1, chosen_b[:, None]).squeeze(1)
    logps_b = None
    if logps:
        at_chosen_b = kept_bK.gather(1, chosen_b[:, None]).squeeze(1)
        if normaliser_b is None:
            normaliser_b = highest_b.squeeze(1) + totals_b.log().float()
        logps_b = at_chosen_b - normaliser_b
    return Drawn(tokens_b, logps_b, totals_b.isfinite())


def _likeliest(logits_bV: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The logits that top-k and top-p leave, from the highest down, and their tokens; all where both are off."""
    vocabulary = logits_bV.shape[1]
    ids_bK = None
    if 0 < sampling.top_k < vocabulary:
        logits_bV, ids_bK = logits_bV.topk(sampling.top_k, dim=-1)
    if sampling.top_p < 1:
        if ids_bK is None:
            logits_bV, ids_bK = logits_bV.sort(dim=-1, descending=True)
        shares_bK = logits_bV.softmax(-1)
        above_bK = shares_bK.cumsum(-1) - shares_bK
        beyond_bK = above_bK >= sampling.top_p
        beyond_bK[:, 0] = False
        logits_bV = logits_bV.masked_fill(beyond_bK, -torch.inf)
    return logits_bV, ids_bK


def _look_up(weights_bV: torch.Tensor, uniform_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Invert the running sum of the weights, first over blocks and then within one, so that little is summed up.

    Returns:
        The place of each row's number in the running sum, and the sum of each row's weights in float64.
    """
    rows, vocabulary = weights_bV.shape
    width = _block_width(vocabulary)
    blocks = -(-vocabulary // width)
    if blocks * width > vocabulary:
        weights_bV = torch.nn.functional.pad(weights_bV, (0, blocks * width - vocabulary))
    weights_bNW = weights_bV.view(rows, blocks, width)
    sums_bN = weights_bNW.sum(-1).double()
    running_bN = sums_bN.cumsum(-1)
    totals_b = running_bN[:, -1]
    block_b1 = _place(running_bN, uniform_b[:, None])
    before_b1 = running_bN.gather(1, block_b1) - sums_bN.gather(1, block_b1)
    within_b1 = (uniform_b[:, None] * totals_b[:, None] - before_b1) / sums_bN.gather(1, block_b1)
    block_bW = weights_bNW.take_along_dim(block_b1[:, :, None], 1).squeeze(1)
    place_b1 = _place(block_bW.double().cumsum(-1), within_b1.clamp(0, 1))
    return (block_b1 * width + place_b1).squeeze(1), totals_b


def _block_width(vocabulary: int) -> int:
    """About the square root of the vocabulary; a little less where that cuts it without a remainder."""
    width = 1 << ((vocabulary - 1).bit_length() + 1) // 2
    return next((w for w in (width, width // 2, width // 4) if w and vocabulary % w == 0), width)


def _place(running_bN: torch.Tensor, share_b1: torch.Tensor) -> torch.Tensor:
    """The first place where the running sum exceeds this share of it: one with a weight above zero."""
    wanted_b1 = share_b1.clamp(max=1 - SHORT) * running_bN[:, -1:]
    place_b1 = torch.searchsorted(running_bN, wanted_b1, right=True)
    return place_b1.clamp_(max=running_bN.shape[1] - 1)
