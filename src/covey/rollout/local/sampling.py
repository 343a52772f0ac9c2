"""Sampling with one prefill per group; completions that have ended leave the batch.

The distribution is that of transformers' `generate`, and at temperature 0 so are the tokens. With the same seed the
sampled tokens differ from `generate`'s, because fewer random numbers are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from covey.errors import TrainingError
from covey.model.base import base_model
from covey.model.device import on_device
from covey.rollout.engine import Completion, SamplingSettings
from covey.rollout.local.decode import PlainDecoder, plain_decoder
from covey.rollout.local.prompt_cache import SharedPromptCache, windows_of
from covey.rollout.local.shared_attention import CACHE, SharedAttention
from covey.rollout.local.token_sampling import (
    LogitsProcessor,
    RowAware,
    SampledTokens,
    process,
    sample_tokens,
)
from covey.rollout.local.weight_order import column_major

PREFILL_TOKENS = 8192
"""Most prompt tokens, padding included, of one prefill, unless one prompt is longer."""

GPU_CHECK_EVERY = 16
"""On a GPU, steps between two checks for ended completions: a check synchronises with the device."""


def sample(
    model: PreTrainedModel | Any,
    prompt_ids: Sequence[Sequence[int]],
    sampling: SamplingSettings,
    *,
    eos_token_ids: Collection[int] = (),
    pad_token_id: int = 0,
    logits_processors: Sequence[LogitsProcessor] = (),
    max_tokens_in_flight: int | None = None,
    generator: torch.Generator | None = None,
    any_has_work: Callable[[bool], bool] | None = None,
    on_progress: Callable[[int], None] | None = None,
    max_lengths: Sequence[int] | None = None,
) -> list[Completion]:
    """Sample one completion per prompt; consecutive equal prompts are prefilled once.

    The result is a function of the weights, the prompts and the generator's state, which advances by one number per
    completion and step. If all completions start at once, the numbers of one do not depend on when others end.

    Args:
        model: a causal language model, possibly with LoRA, for which `unsupported_reason` returns None. Its mode
            (training or evaluation) is left as it is.
        prompt_ids: token ids of the prompts, without padding.
        sampling: the settings.
        eos_token_ids: tokens that end a completion, besides those of the settings.
        pad_token_id: pads shorter prompts.
        logits_processors: applied in order to the logits of each next token; `RowAware` ones get the row numbers.
        max_tokens_in_flight: token budget of the batch, for prompts and completions at full length; as completions
            end, further prompts enter. At least one prompt with all its completions is always admitted. None admits
            all at once.
        generator: for the random numbers; None uses the device's default.
        any_has_work: takes whether this process has work left, returns whether any process has. Needed where
            parameters are sharded, since every process must then take part in every forward; else None.
        on_progress: called with the number of completions done so far, whenever it has grown.
        max_lengths: the longest completion of each prompt, at least one token, where it is below that of the settings.

    Raises:
        TrainingError: the logits are not finite.
        ValueError: a prompt is empty.
    """
    if any(not ids for ids in prompt_ids):
        raise ValueError("a prompt has no tokens")
    decoder = plain_decoder(model) if any_has_work is None else None
    eos = list(dict.fromkeys((*eos_token_ids, *sampling.stop_token_ids)))
    limits = [min(one, sampling.max_completion_length) for one in max_lengths or ()]
    limits = limits or [sampling.max_completion_length] * len(prompt_ids)
    run = _Run(model, prompt_ids, sampling, eos, pad_token_id, logits_processors, generator, decoder, limits)
    by_modules = any_has_work is None and decoder is None
    reported = 0
    with torch.no_grad(), run.attention, ExitStack() as order:
        while any_has_work(run.has_work) if any_has_work is not None else run.has_work:
            entering = run.next_prompts(max_tokens_in_flight)
            if entering and by_modules:
                by_modules = False
                if not _prefill_is_mixed_precision(run, entering):
                    order.enter_context(column_major(model))
            elif entering:
                run.prefill(entering)
            elif run.has_work:
                run.decode()
            else:
                run.dummy_forward()
            if on_progress is not None and run.done > reported:
                reported = run.done
                on_progress(reported)
    return run.results()


@dataclass(slots=True)
class _Group:
    """Consecutive equal prompts."""

    first: int
    ids: Sequence[int]
    count: int


@dataclass
class _Run:
    """One call of `sample`. Rows are indices of `prompt_ids`; places are indices of the batch."""

    model: Any
    prompt_ids: Sequence[Sequence[int]]
    sampling: SamplingSettings
    eos_token_ids: list[int]
    pad_token_id: int
    processors: Sequence[LogitsProcessor]
    generator: torch.Generator | None
    decoder: PlainDecoder | None
    limits: list[int]
    """The longest completion of each row."""
    rows: list[int] = field(default_factory=list)
    done: int = 0
    cache: SharedPromptCache | None = None

    def __post_init__(self) -> None:
        self.attention = SharedAttention(self.model)
        self.device = self.model.device
        self.waiting = _groups(self.prompt_ids)
        self.longest = max((len(ids) for ids in self.prompt_ids), default=0)
        shape = (len(self.prompt_ids), self.longest + max(self.limits, default=0))
        sequences = torch.full(shape, self.pad_token_id, dtype=torch.long)
        for row, ids in enumerate(self.prompt_ids):
            sequences[row, self.longest - len(ids) : self.longest] = torch.tensor(ids)
        self.sequences = on_device(sequences, self.device)
        self.logps = torch.zeros(shape, device=self.device) if self.sampling.logprobs else None
        self.eos = self._on_device(self.eos_token_ids)
        self.lengths = [0] * len(self.prompt_ids)
        self.rows_b = self._on_device([])
        self.newest_b = self._on_device([])
        self.ended_b = torch.zeros(0, dtype=torch.bool, device=self.device)
        self.invalid = torch.zeros((), dtype=torch.bool, device=self.device)
        self.since_check = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.rows)

    def next_prompts(self, budget: int | None) -> list[_Group]:
        """The groups to admit now: those that fit the token budget and one prefill, in order."""
        entering: list[_Group] = []
        reserved = sum(len(self.prompt_ids[row]) for row in self._first_rows())
        reserved += sum(self.limits[row] for row in self.rows)
        for group in self.waiting:
            need = len(group.ids) + sum(self.limits[group.first : group.first + group.count])
            widest = max(len(group.ids), *(len(other.ids) for other in entering), 0)
            too_wide = widest * (len(entering) + 1) > PREFILL_TOKENS
            too_many = budget is not None and reserved + need > budget
            if (too_wide and entering) or (too_many and (entering or self.rows)):
                break
            entering.append(group)
            reserved += need
        del self.waiting[: len(entering)]
        return entering

    def _first_rows(self) -> list[int]:
        """A row of each prompt that is in the batch."""
        if self.cache is None:
            return []
        return list(dict(zip(self.cache.prompt_of, self.rows, strict=True)).values())

    def prefill(self, groups: list[_Group]) -> None:
        """Compute prompts and sample the first token of each of their completions."""
        self.attention.share(False)
        logits_PV, prefilled = prefill(self.model, [group.ids for group in groups], self.pad_token_id)
        if self.cache is None:
            self.cache = SharedPromptCache(windows_of(prefilled))
        counts = [group.count for group in groups]
        self.cache.admit(prefilled, [len(group.ids) for group in groups], counts)
        old = len(self.rows)
        new = [row for group in groups for row in range(group.first, group.first + group.count)]
        self.rows += new
        new_b = self._on_device(new)
        self.rows_b = torch.cat([self.rows_b, new_b])
        self.newest_b = torch.cat([self.newest_b, torch.zeros_like(new_b)])
        self.ended_b = torch.cat([self.ended_b, torch.zeros_like(new_b, dtype=torch.bool)])
        logits_bV = logits_PV.repeat_interleave(self._on_device(counts), 0, output_size=len(new))
        self._sample(logits_bV, slice(old, None), changed=True)

    def decode(self) -> None:
        """Sample one more token of every completion in the batch."""
        self._sample(self._step(), slice(None), changed=False)

    def _step(self) -> torch.Tensor:
        """The logits of the next token of every row. The first step is computed both ways, to verify the decoder."""
        assert self.cache is not None
        decoder = self.decoder
        if decoder is not None and decoder.verified:
            return decoder.step(self.cache, self.newest_b)
        self.attention.share(True)
        packed_bV = None if decoder is None else decoder.peek(self.cache, self.newest_b)
        logits_bV = step(self.model, self.cache, self.newest_b)
        if decoder is not None and packed_bV is not None and not decoder.compare(packed_bV, logits_bV):
            self.decoder = None
        return logits_bV

    def dummy_forward(self) -> None:
        """Take part in a forward of the other processes."""
        self.attention.share(False)
        self.model(input_ids=self.sequences.new_zeros(1, 1))

    def _sample(self, logits_bV: torch.Tensor, places: slice, *, changed: bool) -> None:
        """Sample from the logits of these places of the batch, and remove the completions that have ended."""
        rows, rows_b = self.rows[places], self.rows_b[places]
        if changed:
            self._select_rows(rows_b)
        sampled = self._sample_tokens(logits_bV, rows, places)
        self.newest_b[places] = sampled.tokens_b
        self.ended_b[places] |= torch.isin(sampled.tokens_b, self.eos)
        self.invalid |= ~sampled.valid_b.all()
        for row in rows:
            self.lengths[row] += 1
        full = any(self.lengths[row] == self.limits[row] for row in rows)
        self.since_check += 1
        if full or self.device.type == "cpu" or self.since_check >= GPU_CHECK_EVERY:
            self.since_check = 0
            self._remove_ended()
        elif changed and len(rows) < len(self.rows):
            self._select_rows(self.rows_b)

    def _sample_tokens(self, logits_bV: torch.Tensor, rows: list[int], places: slice) -> SampledTokens:
        logits_bV, rows_b = logits_bV.float(), self.rows_b[places]
        if self.processors or self.sampling.repetition_penalty != 1.0:
            sequences_bS, starts_b = self._sequences_so_far(rows, places)
            logits_bV = process(logits_bV, sequences_bS, starts_b, self.sampling, self.processors)
        uniform_b = torch.empty(0)
        if self.sampling.temperature > 0:
            uniform_b = torch.rand(
                len(self.prompt_ids), dtype=torch.float64, device=self.device, generator=self.generator
            )[rows_b]
        sampled = sample_tokens(logits_bV, uniform_b, self.sampling)
        columns_b = self._columns(rows, places)
        self.sequences[rows_b, columns_b] = sampled.tokens_b
        if self.logps is not None and sampled.logps_b is not None:
            self.logps[rows_b, columns_b] = sampled.logps_b
        return sampled

    def _columns(self, rows: list[int], places: slice) -> torch.Tensor | int:
        """The column of each row's next token."""
        assert self.cache is not None
        counts = {self.lengths[row] for row in rows}
        if len(counts) == 1:
            return self.longest + counts.pop()
        return self.cache.completion_lengths_b[places] + self.longest

    def _sequences_so_far(self, rows: list[int], places: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens so far, padded on the left, and where each row's tokens begin."""
        assert self.cache is not None
        rows_b = self.rows_b[places]
        counts = [self.lengths[row] for row in rows]
        counts_b, prompts_b = self.cache.completion_lengths_b[places], self.cache.prompt_lengths_b[places]
        width = max(len(self.prompt_ids[row]) + count for row, count in zip(rows, counts, strict=True))
        end, starts_b = self.longest + max(counts), width - prompts_b - counts_b
        if min(counts) == max(counts):
            return self.sequences[rows_b, end - width : end], starts_b
        columns_bS = torch.arange(end - width, end, device=self.device) - (max(counts) - counts_b)[:, None]
        found_bS = self.sequences[rows_b[:, None], columns_bS.clamp(min=0)]
        padding_bS = torch.arange(width, device=self.device) < starts_b[:, None]
        return found_bS.masked_fill(padding_bS, self.pad_token_id), starts_b

    def _remove_ended(self) -> None:
        *ended, invalid = torch.cat([self.ended_b, self.invalid[None]]).tolist()  # one wait for the device
        if invalid:
            raise TrainingError(
                "The model's logits are not finite (NaN or infinite), so no token can be sampled from them. "
                "Its weights have most likely diverged: lower training.learning_rate, or go back to a checkpoint."
            )
        gone = [place for place, row in enumerate(self.rows) if ended[place] or self.lengths[row] == self.limits[row]]
        if not gone:
            return
        assert self.cache is not None
        self.done += len(gone)
        order = self.cache.drop(gone)
        self.rows = [self.rows[place] for place in order]
        order_b = self._on_device(order)
        self.rows_b, self.newest_b, self.ended_b = (t[order_b] for t in (self.rows_b, self.newest_b, self.ended_b))
        self._select_rows(self.rows_b)

    def _select_rows(self, rows_b: torch.Tensor) -> None:
        processors: Sequence[object] = self.processors
        for processor in processors:
            if isinstance(processor, RowAware):
                processor.select_rows(rows_b)

    def _on_device(self, numbers: Sequence[int]) -> torch.Tensor:
        return on_device(numbers, self.device)

    def results(self) -> list[Completion]:
        """The completions, each up to its first end-of-sequence token."""
        eos = set(self.eos_token_ids)
        completions = self.sequences[:, self.longest :].tolist()
        logps = None if self.logps is None else self.logps[:, self.longest :].tolist()
        found = []
        for row, ids in enumerate(completions):
            ids = ids[: self.lengths[row]]
            end = next((place for place, token in enumerate(ids, start=1) if token in eos), None)
            found.append(Completion(ids[:end], end is None, None if logps is None else logps[row][: len(ids[:end])]))
        return found


def _prefill_is_mixed_precision(run: _Run, entering: list[_Group]) -> bool:
    """Prefill these prompts, and return whether that ran in mixed precision, which accelerate enables inside of a
    forward only."""
    found: list[bool] = []
    kind = run.model.device.type
    embeddings = base_model(run.model).get_input_embeddings()
    with embeddings.register_forward_pre_hook(lambda *_: found.append(torch.is_autocast_enabled(kind))):
        run.prefill(entering)
    return any(found)


def _groups(prompt_ids: Sequence[Sequence[int]]) -> list[_Group]:
    groups = []
    for ids, same in groupby(range(len(prompt_ids)), key=lambda row: list(prompt_ids[row])):
        places = list(same)
        groups.append(_Group(places[0], ids, len(places)))
    return groups


def prefill(model: Any, prompts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, DynamicCache]:
    """Compute prompts with the model's own attention.

    Returns:
        The logits of the token after each prompt, `[P, V]`, and the filled cache.
    """
    longest = max(map(len, prompts))
    ids_PL = on_device([[pad] * (longest - len(ids)) + list(ids) for ids in prompts], model.device)
    cache = DynamicCache(config=model.config)
    masks: dict[str, torch.Tensor] = {}
    if min(map(len, prompts)) < longest:
        mask_PL = on_device([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts], model.device)
        masks = {"attention_mask": mask_PL, "position_ids": (mask_PL.cumsum(-1) - 1).clamp(min=0)}
    out = model(input_ids=ids_PL, past_key_values=cache, use_cache=True, logits_to_keep=1, **masks)
    return out.logits[:, -1], cache


def step(model: Any, cache: SharedPromptCache, tokens_b: torch.Tensor) -> torch.Tensor:
    """Append a token to every row, with shared attention, and return the logits of the next, `[b, V]`."""
    cache.begin()
    out = model(
        input_ids=tokens_b[:, None],
        position_ids=cache.positions_b1(),
        past_key_values=cache,
        use_cache=True,
        **{CACHE: cache},
    )
    cache.end()
    logits_bV: torch.Tensor = out.logits[:, -1]
    return logits_bV
