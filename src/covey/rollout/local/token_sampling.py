"""Sampling tokens from logits: temperature, repetition penalty, top-k, top-p, min-p, and inverse transform sampling.

One random number per row is looked up in the cumulative sum of the row's weights, rather than drawing one for every
token of the vocabulary: the distribution is the same, and a row's random numbers do not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from covey.rollout.engine import SamplingSettings

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes the tokens so far `[b, S]`, padded on the left as for `generate`, and the logits `[b, V]` of the next token in
float32; returns logits `[b, V]`, and may change its input. transformers' own processors fit."""

SHORT = 1e-12
"""How far a random number stays below 1, as a share, so that rounding cannot pass the last weight."""


@runtime_checkable
class RowAware(Protocol):
    """A logits processor that gets the row numbers, because it keeps state per row."""

    def select_rows(self, rows_b: torch.Tensor) -> None:
        """From the next call on, row `i` of the batch is completion `rows_b[i]` of all requested ones.

        Called before the first token and whenever completions have entered, ended or moved. A completion that has
        ended does not come back.
        """


NOT_FINITE = (
    "The model's logits are not finite (NaN or infinite), so no token can be sampled from them. "
    "Its weights have most likely diverged: lower training.learning_rate, or go back to a checkpoint."
)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token per row."""

    tokens_b: torch.Tensor
    logps_b: torch.Tensor | None
    """Log-probabilities in the distribution that was sampled from; at temperature 1 where the temperature is 0."""
    valid_b: torch.Tensor
    """Whether the row's logits define a distribution: at least one finite, none NaN."""
    support: torch.Tensor | None = None
    """The tokens that could be sampled, likeliest first, then -1: int32 `[b, C]`. None unless asked for."""


def row_keys(seeds: Sequence[int]) -> torch.Tensor:
    """The keys of the rows' random numbers, `[B, 2]`: where each row's counter starts, and by what it grows.

    Args:
        seeds: any integers, of which the lowest 64 bits count.
    """
    seeds_B = torch.tensor([_signed(seed % 2**64) for seed in seeds], dtype=torch.long)
    starts_B = _mixed(seeds_B + _signed(0x9E3779B97F4A7C15))
    return torch.stack([starts_B, _mixed(starts_B + _signed(0xD1B54A32D192ED03)) | 1], dim=1)


def row_uniform(keys_b2: torch.Tensor, places_b: torch.Tensor) -> torch.Tensor:
    """A random number in [0, 1) for each row, in float64: a function of its key and place, the same on every device.

    Counter-based, after SplitMix (Steele, Lea, Flood 2014), with an own step of the counter for each row.

    Args:
        keys_b2: see `row_keys`, `[b, 2]`.
        places_b: the place of the next token in its sequence, int64.
    """
    start_b, step_b = keys_b2.unbind(1)
    number_b: torch.Tensor = _shifted(_mixed(start_b + places_b * step_b), 11).double() * 2.0**-53
    return number_b


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """A bijection of 64-bit integers whose output bits depend on all input bits (Stafford's variant 13)."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifted to the right as an unsigned number."""
    return (x >> bits) & ((1 << 64 - bits) - 1)


def _signed(bits: int) -> int:
    """The int64 with these 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits


def process(
    logits_bV: torch.Tensor,
    sequences_bS: torch.Tensor,
    starts_b: torch.Tensor,
    sampling: SamplingSettings,
    processors: Sequence[LogitsProcessor],
) -> torch.Tensor:
    """Apply the repetition penalty, then the processors, to float32 logits, possibly in place.

    Args:
        logits_bV: of the model.
        sequences_bS: the tokens so far, padded on the left.
        starts_b: where each row's tokens begin, after the padding.
        sampling: holds the penalty.
        processors: applied in order.
    """
    if sampling.repetition_penalty != 1.0:
        column_S = torch.arange(sequences_bS.shape[1], device=sequences_bS.device)
        own_bS = column_S >= starts_b[:, None]
        seen_bS = torch.where(own_bS, sequences_bS, sequences_bS[:, -1:])  # padding does not count
        found_bS = logits_bV.gather(1, seen_bS)
        penalty = sampling.repetition_penalty
        logits_bV.scatter_(1, seen_bS, torch.where(found_bS < 0, found_bS * penalty, found_bS / penalty))
    for processor in processors:
        logits_bV = processor(sequences_bS, logits_bV)
    return logits_bV


def sample_tokens(logits_bV: torch.Tensor, uniform_b: torch.Tensor, sampling: SamplingSettings) -> SampledTokens:
    """Sample a token per row.

    The steps and their order are those of transformers' `generate`: temperature, top-k, top-p, min-p, each on the
    tokens that the one before has left. Of equal logits at the edge of top-k, only as many are kept as make k.

    Args:
        logits_bV: processed, in float32; changed in place.
        uniform_b: random numbers in [0, 1), in float64; unused at temperature 0.
    """
    if sampling.temperature == 0:
        best_b = logits_bV.argmax(-1)
        highest_b = logits_bV.gather(1, best_b[:, None]).squeeze(1)
        logps_b = highest_b - torch.logsumexp(logits_bV, -1) if sampling.logprobs else None
        return SampledTokens(best_b, logps_b, highest_b.isfinite())
    if sampling.temperature != 1.0:
        logits_bV.div_(sampling.temperature)
    logits_bC, ids_bC = in_order(logits_bV, sampling)
    if sampling.top_p < 1:
        shares_bC = logits_bC.softmax(-1)
        above_bC = shares_bC.cumsum(-1) - shares_bC
        outside_bC = above_bC >= sampling.top_p
        outside_bC[:, 0] = False
        logits_bC = logits_bC.masked_fill(outside_bC, -torch.inf)
    return Candidates(logits_bC, ids_bC, sampling).draw(uniform_b)


def in_order(logits_bV: torch.Tensor, sampling: SamplingSettings) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The logits that top-k leaves, descending, and their tokens; all logits and None where no order is needed."""
    if 0 < sampling.most_kept < logits_bV.shape[1]:
        logits_bC, ids_bC = logits_bV.topk(sampling.most_kept, dim=-1)
        return logits_bC, ids_bC
    if sampling.top_p < 1 or (sampling.support and sampling.truncates):
        logits_bC, ids_bC = logits_bV.sort(dim=-1, descending=True)
        return logits_bC, ids_bC
    return logits_bV, None


class Candidates:
    """Tokens that are sampled from."""

    def __init__(self, logits_bC: torch.Tensor, ids_bC: torch.Tensor | None, sampling: SamplingSettings) -> None:
        """
        Args:
            logits_bC: processed, divided by the temperature, minus infinity where cut off, but not by min-p.
            ids_bC: their tokens, the likeliest first; None for all tokens of the vocabulary, in their order.
        """
        self._logits_bC, self._ids_bC, self._sampling = logits_bC, ids_bC, sampling
        self._highest_b1 = logits_bC[:, :1] if ids_bC is not None else logits_bC.amax(-1, keepdim=True)
        self._weights_bC = torch.exp(logits_bC - self._highest_b1)
        if sampling.min_p > 0:
            self._weights_bC.masked_fill_(self._weights_bC < sampling.min_p, 0.0)

    def draw(self, uniform_b: torch.Tensor) -> SampledTokens:
        """The tokens that these numbers in [0, 1) fall on."""
        chosen_b, totals_b = _invert(self._weights_bC, uniform_b)
        tokens_b = chosen_b if self._ids_bC is None else self._ids_bC.gather(1, chosen_b[:, None]).squeeze(1)
        logps_b = None
        if self._sampling.logprobs:
            at_chosen_b1 = self._logits_bC.gather(1, chosen_b[:, None])
            logps_b = (at_chosen_b1 - self._highest_b1).squeeze(1) - totals_b.log().float()
        support_bC = self.support() if self._sampling.support else None
        return SampledTokens(tokens_b, logps_b, totals_b.isfinite(), support_bC)

    def support(self) -> torch.Tensor | None:
        """The tokens with a weight, likeliest first, then -1, in int32; None if all tokens are candidates."""
        if self._ids_bC is None:
            return None
        return torch.where(self._weights_bC > 0, self._ids_bC, -1).int()

    def spread(self, logits_bV: torch.Tensor) -> torch.Tensor:
        """Logits of the vocabulary, minus infinity for all tokens without a weight."""
        if self._ids_bC is None:
            return logits_bV
        logits_bC = self._logits_bC.masked_fill(self._weights_bC == 0, -torch.inf)
        return torch.full_like(logits_bV, -torch.inf).scatter_(1, self._ids_bC, logits_bC)


def _invert(weights_bV: torch.Tensor, uniform_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Invert the cumulative sum of the weights, first over blocks and then within one, so that little is summed.

    Returns:
        The token that each row's number falls on, and the sum of each row's weights in float64.
    """
    rows, vocabulary = weights_bV.shape
    width = _block_width(vocabulary)
    blocks = -(-vocabulary // width)
    if blocks * width > vocabulary:
        weights_bV = torch.nn.functional.pad(weights_bV, (0, blocks * width - vocabulary))
    weights_bJW = weights_bV.view(rows, blocks, width)
    sums_bJ = weights_bJW.sum(-1).double()
    running_bJ = sums_bJ.cumsum(-1)
    totals_b = running_bJ[:, -1]
    block_b1 = _index(running_bJ, uniform_b[:, None])
    before_b1 = running_bJ.gather(1, block_b1) - sums_bJ.gather(1, block_b1)
    within_b1 = (uniform_b[:, None] * totals_b[:, None] - before_b1) / sums_bJ.gather(1, block_b1)
    block_bW = weights_bJW.take_along_dim(block_b1[:, :, None], 1).squeeze(1)
    index_b1 = _index(block_bW.double().cumsum(-1), within_b1.clamp(0, 1))
    return (block_b1 * width + index_b1).squeeze(1), totals_b


def _block_width(vocabulary: int) -> int:
    """About the square root of the vocabulary; a little less where that divides it without a remainder."""
    width = 1 << ((vocabulary - 1).bit_length() + 1) // 2
    return next((w for w in (width, width // 2, width // 4) if w and vocabulary % w == 0), width)


def _index(running_bJ: torch.Tensor, share_b1: torch.Tensor) -> torch.Tensor:
    """The first index at which the cumulative sum exceeds this share of the total: one with a weight above zero."""
    wanted_b1 = share_b1.clamp(max=1 - SHORT) * running_bJ[:, -1:]
    index_b1 = torch.searchsorted(running_bJ, wanted_b1, right=True)
    return index_b1.clamp_(max=running_bJ.shape[1] - 1)
