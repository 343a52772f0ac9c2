"""Sampling tokens from logits, and what the rows of a call of `sample` have written.

Inverse transform sampling: one random number per row is looked up in the cumulative sum of the row's weights, rather
than drawing one for every token of the vocabulary. The distribution is the same, and a row's random numbers do not
depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from covey.model.device import on_device
from covey.rollout.engine import Completion, SamplingSettings

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
    # About the square root of the vocabulary; a little less where that divides it without a remainder.
    width = 1 << ((vocabulary - 1).bit_length() + 1) // 2
    width = next((w for w in (width, width // 2, width // 4) if w and vocabulary % w == 0), width)
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


def _index(running_bJ: torch.Tensor, share_b1: torch.Tensor) -> torch.Tensor:
    """The first index at which the cumulative sum exceeds this share of the total: one with a weight above zero."""
    wanted_b1 = share_b1.clamp(max=1 - SHORT) * running_bJ[:, -1:]
    index_b1 = torch.searchsorted(running_bJ, wanted_b1, right=True)
    return index_b1.clamp_(max=running_bJ.shape[1] - 1)


FLUSH_EVERY = 16
"""Steps after which supports are moved to main memory, for which the host waits for a GPU."""

MOST_WAITING = 2**24
"""Most tokens of supports on the device, which are moved earlier when there are more."""

FIRST_LENGTH = 64
"""Initial capacity in places per completion; doubled whenever it is full."""


class Supports:
    """The tokens that could be sampled in each place of each row, kept in main memory.

    A buffer `[B, T, C]` grows with the longest completion and the largest support.
    """

    def __init__(self, rows: int) -> None:
        self._kept_BTC = torch.empty(rows, 0, 0, dtype=torch.int32)
        self._waiting = list[tuple[Sequence[int], Sequence[int], torch.Tensor]]()
        self._size = 0

    def add(self, rows: Sequence[int], places: Sequence[int], support_bC: torch.Tensor) -> None:
        """Add the supports of a step.

        Args:
            places: tokens of their completions so far.
            support_bC: token ids, likeliest first, then -1.
        """
        self._waiting.append((rows, places, support_bC))
        self._size += support_bC.numel()
        if self._size > MOST_WAITING:
            self.flush()

    def flush(self, steps: int = 1) -> None:
        """Move what has been added in at least so many steps to main memory, less the columns that no row needs."""
        if len(self._waiting) < steps:
            return
        rows = [row for some, _, _ in self._waiting for row in some]
        places = [place for _, some, _ in self._waiting for place in some]
        all_NC = torch.cat([support_bC for _, _, support_bC in self._waiting])
        self._waiting, self._size = [], 0
        used = int((all_NC >= 0).any(0).sum())
        self._grow(max(places) + 1, used)
        self._kept_BTC[torch.tensor(rows), torch.tensor(places), :used] = all_NC[:, :used].cpu()

    def _grow(self, length: int, candidates: int) -> None:
        rows, T, C = self._kept_BTC.shape
        if length <= T and candidates <= C:
            return
        longer = T if length <= T else max(length, 2 * T, FIRST_LENGTH)
        larger = C if candidates <= C else max(candidates, C + C // 4)
        grown_BTC = torch.full((rows, longer, larger), -1, dtype=torch.int32)
        grown_BTC[:, :T, :C] = self._kept_BTC
        self._kept_BTC = grown_BTC

    def read(self, row: int, length: int) -> torch.Tensor | None:
        """The supports of this many places of a row, `[T, C]`, as narrow as they are; None if there are none at all."""
        self.flush()
        if not self._kept_BTC.numel():
            return None
        found_TC = self._kept_BTC[row, :length]
        return found_TC[:, : int((found_TC >= 0).any(0).sum())].clone()


class Written:
    """The tokens of all rows on the device: prompts, right-aligned, then completions."""

    def __init__(
        self,
        prompt_ids: Sequence[Sequence[int]],
        max_completion_length: int,
        pad_token_id: int,
        device: torch.device,
        *,
        logps: bool,
    ) -> None:
        """
        Args:
            prompt_ids: of the rows.
            max_completion_length: most tokens of a completion.
            pad_token_id: stands before shorter prompts.
            device: of the model.
            logps: whether there are log-probabilities.
        """
        self._pad = pad_token_id
        self._device = device
        self._longest = max(map(len, prompt_ids), default=0)
        shape = (len(prompt_ids), self._longest + max_completion_length)
        sequences = torch.full(shape, pad_token_id, dtype=torch.long)
        for row, ids in enumerate(prompt_ids):
            sequences[row, self._longest - len(ids) : self._longest] = torch.tensor(ids)
        self._sequences = on_device(sequences, device)
        self._logps = torch.zeros(shape, device=device) if logps else None
        self.supports = Supports(len(prompt_ids))

    def put(self, rows_b: torch.Tensor, counts: torch.Tensor | int, sampled: SampledTokens) -> None:
        """Append a token to each of these rows.

        Args:
            counts: tokens of their completions so far.
            sampled: their tokens.
        """
        columns = self._longest + counts
        self._sequences[rows_b, columns] = sampled.tokens_b
        if self._logps is not None and sampled.logps_b is not None:
            self._logps[rows_b, columns] = sampled.logps_b

    def so_far(
        self, rows_b: torch.Tensor, width: int, most: int, starts_b: torch.Tensor, behind_b: torch.Tensor | None
    ) -> torch.Tensor:
        """The tokens of these rows, padded on the left: `[b, width]`.

        Args:
            width: tokens of the longest one.
            most: tokens of the longest completion of them.
            starts_b: where each row's tokens begin.
            behind_b: how many tokens each row's completion has less than that; None means none.
        """
        end = self._longest + most
        if behind_b is None:
            return self._sequences[rows_b, end - width : end]
        columns_bS = torch.arange(end - width, end, device=self._device) - behind_b[:, None]
        found_bS = self._sequences[rows_b[:, None], columns_bS.clamp(min=0)]
        padding_bS = torch.arange(width, device=self._device) < starts_b[:, None]
        return found_bS.masked_fill(padding_bS, self._pad)

    def read(
        self, rows: Sequence[int], lengths: Sequence[int], limits: Sequence[int], eos_token_ids: Collection[int]
    ) -> list[Completion]:
        """The completions of these rows, each up to its first end-of-sequence token. The host waits for the device.

        Args:
            lengths: tokens of their completions, perhaps with some after the end.
            limits: most tokens of each; one without an end and with fewer is unfinished.
            eos_token_ids: tokens that end a completion.
        """
        if not rows:
            return []
        rows_b = on_device(rows, self._device)
        columns = slice(self._longest, self._longest + max(lengths))
        completions = self._sequences[rows_b, columns].tolist()
        logps = None if self._logps is None else self._logps[rows_b, columns].tolist()
        eos, found = set(eos_token_ids), []
        for place, (row, ids, length, limit) in enumerate(zip(rows, completions, lengths, limits, strict=True)):
            end = next((count for count, token in enumerate(ids[:length], start=1) if token in eos), None)
            kept = slice(length if end is None else end)
            found.append(
                Completion(
                    ids[kept],
                    truncated=end is None and length == limit,
                    logps=None if logps is None else logps[place][kept],
                    support=self.supports.read(row, length if end is None else end),
                    unfinished=end is None and length < limit,
                )
            )
        return found
