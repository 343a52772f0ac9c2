"""Sampling with one prefill per group; completions that have ended leave the batch.

The distribution is that of transformers' `generate`, and at temperature 0 so are the tokens. With the same seed the
sampled tokens differ from `generate`'s, because fewer random numbers are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import torch
from transformers import PreTrainedModel

from covey.errors import TrainingError
from covey.model.device import on_device
from covey.rollout.engine import Completion, SamplingSettings
from covey.rollout.local.cache import SharedAttention, SharedPromptCache, windows_of
from covey.rollout.local.decode import PlainDecoder, column_major, is_mixed_precision, plain_decoder
from covey.rollout.local.tokens import (
    FLUSH_EVERY,
    NOT_FINITE,
    LogitsProcessor,
    RowAware,
    SampledTokens,
    Written,
    process,
    row_keys,
    row_uniform,
    sample_tokens,
)
from covey.rollout.local.turns import Kept, NextTurn, Turn, TurnRow, prefill, step

PREFILL_TOKENS = 8192
"""Most prompt tokens, padding included, of one prefill, unless one prompt is longer."""

GPU_CHECK_EVERY = FLUSH_EVERY
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
    turn: Turn | None = None,
    row_seeds: Sequence[int] | None = None,
    interrupted: Callable[[], bool] | None = None,
    on_ended: Callable[[int, Completion], None] | None = None,
    packed: dict[Any, PlainDecoder | None] | None = None,
) -> list[Completion]:
    """Sample one completion per prompt; consecutive equal prompts are prefilled once.

    The result is a function of the weights, the prompts and the generator's state, which advances by one number per
    completion and step. If all completions start at once, the numbers of one do not depend on when others end. With
    `row_seeds` the number of a token is a function of its row's seed and its place in the sequence alone.

    Args:
        model: a causal language model, possibly with LoRA, for which `unsupported_reason` returns None. Its mode
            (training or evaluation) is left as it is.
        prompt_ids: token ids of the prompts, without padding.
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
        turn: what the last turn of these conversations has left, and what this one leaves; only without a token budget.
        row_seeds: one for each prompt, in place of the generator.
        interrupted: asked between tokens; once it returns true, completions without an end are `unfinished`, those that
            have not begun without a token. With sharded parameters the processes may differ in it.
        on_ended: called with the row and the completion of each row that has ended, as soon as that is known; at the
            end of a step, so that it may take its time but must not use the model.
        packed: holds the packed weights of each model after the call, for further calls with the same weights.

    Raises:
        TrainingError: the logits are not finite.
        ValueError: a prompt is empty, a completion's limit is below 1, there is not one seed for each prompt, or a turn
            has a token budget.
    """
    if any(not ids for ids in prompt_ids):
        raise ValueError("a prompt has no tokens")
    if min(max_lengths or [1]) < 1:
        raise ValueError("a completion may have no tokens")
    if turn is not None and max_tokens_in_flight is not None:
        raise ValueError("rows of a turn enter all at once")
    if row_seeds is not None and len(row_seeds) != len(prompt_ids):
        raise ValueError(f"{len(row_seeds)} seeds for {len(prompt_ids)} prompts")
    packed = {} if packed is None else packed
    if any_has_work is None and model not in packed:
        packed[model] = plain_decoder(model)
    decoder = packed.get(model) if any_has_work is None else None
    if decoder is not None:
        decoder.verified = False  # so that a batch has the same numbers whatever came before it
    eos = list(dict.fromkeys((*eos_token_ids, *sampling.stop_token_ids)))
    limits = [min(one, sampling.max_completion_length) for one in max_lengths or ()]
    limits = limits or [sampling.max_completion_length] * len(prompt_ids)
    keys_B2 = None if row_seeds is None else on_device(row_keys(row_seeds), model.device)
    run = _Run(
        *(model, prompt_ids, sampling, eos, pad_token_id, logits_processors, generator, decoder, limits, turn),
        *(keys_B2, on_ended),
    )
    by_modules = any_has_work is None and decoder is None
    reported = 0

    def goes_on() -> bool:
        if interrupted is not None and run.has_work and interrupted():
            run.stop()
        return run.has_work if any_has_work is None else any_has_work(run.has_work)

    with torch.no_grad(), run.attention, ExitStack() as order:
        while goes_on():
            forward = run.next_forward(max_tokens_in_flight)
            if by_modules:
                by_modules = False
                if not is_mixed_precision(model, forward):
                    order.enter_context(column_major(model))
            else:
                forward()
            if on_progress is not None and run.done > reported:
                reported = run.done
                on_progress(reported)
    return run.results()


@dataclass(slots=True)
class _Group:
    """Equal prompts, one after another."""

    ids: Sequence[int]
    rows: list[int]


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
    turn: Turn | None
    keys: torch.Tensor | None
    """Of the rows' random numbers, `[B, 2]`: see `row_keys`."""
    on_ended: Callable[[int, Completion], None] | None
    rows: list[int] = field(default_factory=list)
    done: int = 0
    cache: SharedPromptCache | None = None

    def __post_init__(self) -> None:
        self.attention = SharedAttention(self.model)
        self.device = self.model.device
        self.next_turn, self.ended_rows = None, list[int]()
        going_on: set[int] = set()
        if self.turn is not None and any(match.kept is not None for match in self.turn.matches):
            self.next_turn = NextTurn(self.prompt_ids, self.turn.matches, self.device)
            self.cache, going_on = self.next_turn.cache, set(self.next_turn.rows)
            self.turn.matches.clear()
        self.waiting = _groups(self.prompt_ids, going_on)
        longest = max(self.limits, default=0)
        self.written = Written(self.prompt_ids, longest, self.pad_token_id, self.device, logps=self.sampling.logprobs)
        self.found: dict[int, Completion] = {}
        self.eos = self._on_device(self.eos_token_ids)
        self.prompt_lengths = self._on_device(list(map(len, self.prompt_ids)))
        self.lengths = [0] * len(self.prompt_ids)
        self.rows_b = self._on_device([])
        self.newest_b = self._on_device([])
        self.ended_b = torch.zeros(0, dtype=torch.bool, device=self.device)
        self.invalid = torch.zeros((), dtype=torch.bool, device=self.device)
        self.since_check = 0

    @property
    def has_work(self) -> bool:
        return bool(self.next_turn or self.waiting or self.rows)

    def next_forward(self, budget: int | None) -> Callable[[], None]:
        """What the next forward is for. Rows that go on come first, then new prompts."""
        if self.next_turn is not None:
            return partial(self.read, self.next_turn)
        if entering := self.next_prompts(budget):
            return partial(self.prefill, entering)
        return self.decode if self.has_work else self.dummy_forward

    def next_prompts(self, budget: int | None) -> list[_Group]:
        """The groups to admit now: those that fit the token budget and one prefill, in order."""
        entering: list[_Group] = []
        reserved = sum(self.limits[row] for row in self.rows)
        if self.cache is not None:  # the tokens of each prompt count once
            first = dict(zip(self.cache.prompt_of, self.rows, strict=True)).values()
            reserved += sum(len(self.prompt_ids[row]) for row in first)
        for group in self.waiting:
            need = len(group.ids) + sum(self.limits[row] for row in group.rows)
            widest = max(len(group.ids), *(len(other.ids) for other in entering), 0)
            too_wide = widest * (len(entering) + 1) > PREFILL_TOKENS
            too_many = budget is not None and reserved + need > budget
            if (too_wide and entering) or (too_many and (entering or self.rows)):
                break
            entering.append(group)
            reserved += need
        del self.waiting[: len(entering)]
        return entering

    def prefill(self, groups: list[_Group]) -> None:
        """Compute prompts and sample the first token of each of their completions."""
        self.attention.share(False)
        logits_PV, prefilled = prefill(self.model, [group.ids for group in groups], self.pad_token_id)
        if self.cache is None:
            self.cache = SharedPromptCache(windows_of(prefilled), keeps=self.turn is not None)
        counts = [len(group.rows) for group in groups]
        self.cache.admit(prefilled, [len(group.ids) for group in groups], counts)
        new = [row for group in groups for row in group.rows]
        self._enter(new, logits_PV.repeat_interleave(self._on_device(counts), 0, output_size=len(new)))

    def read(self, next_turn: NextTurn) -> None:
        """Read new tokens of the rows that go on, and after the last ones sample the next of every row."""
        self.attention.share(True)
        logits_bV = next_turn.read(self.model)
        if logits_bV is not None:
            self.next_turn = None
            self._enter(next_turn.rows, logits_bV)

    def _enter(self, new: list[int], logits_bV: torch.Tensor) -> None:
        """Let rows enter the batch, and sample from their logits."""
        old = len(self.rows)
        self.rows += new
        new_b = self._on_device(new)
        self.rows_b = torch.cat([self.rows_b, new_b])
        self.newest_b = torch.cat([self.newest_b, torch.zeros_like(new_b)])
        self.ended_b = torch.cat([self.ended_b, torch.zeros_like(new_b, dtype=torch.bool)])
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
        logits_bV = step(self.model, self.cache, self.newest_b[:, None])
        if decoder is not None and packed_bV is not None and not decoder.compare(packed_bV, logits_bV):
            self.decoder = None
        return logits_bV

    def dummy_forward(self) -> None:
        """Take part in a forward of the other processes."""
        self.attention.share(False)
        self.model(input_ids=self.rows_b.new_zeros(1, 1))

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
        full = any(self.lengths[row] == self.limits[row] for row in self.rows)
        self.since_check += 1
        due = full or self.device.type == "cpu" or self.since_check >= GPU_CHECK_EVERY
        if due and not (self.turn is not None and self.waiting):  # rows enter before those that are kept
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
            uniform_b = self._uniform(rows_b, places)
        sampled = sample_tokens(logits_bV, uniform_b, self.sampling)
        counts = [self.lengths[row] for row in rows]
        counts_b = counts[0] if min(counts) == max(counts) else self._counts_b(places)
        self.written.put(rows_b, counts_b, sampled)
        if sampled.support is not None:
            self.written.supports.add(rows, counts, sampled.support)
        return sampled

    def _uniform(self, rows_b: torch.Tensor, places: slice) -> torch.Tensor:
        """Random numbers in [0, 1) for the next tokens, in float64."""
        if self.keys is None:
            rows, options = len(self.prompt_ids), {"device": self.device, "generator": self.generator}
            return torch.rand(rows, dtype=torch.float64, **options)[rows_b]
        assert self.cache is not None
        return row_uniform(self.keys[rows_b], self.cache.row_lengths_b[places])

    def _counts_b(self, places: slice) -> torch.Tensor:
        """How many tokens of each row's completion are in the cache."""
        assert self.cache is not None
        return self.cache.row_lengths_b[places] - self.prompt_lengths[self.rows_b[places]]

    def _sequences_so_far(self, rows: list[int], places: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens so far, padded on the left, and where each row's tokens begin."""
        assert self.cache is not None
        counts = [self.lengths[row] for row in rows]
        width = max(len(self.prompt_ids[row]) + count for row, count in zip(rows, counts, strict=True))
        starts_b = width - self.cache.row_lengths_b[places]
        behind_b = None if min(counts) == max(counts) else max(counts) - self._counts_b(places)
        return self.written.so_far(self.rows_b[places], width, max(counts), starts_b, behind_b), starts_b

    def stop(self) -> None:
        """Take no further token: the rows leave the batch as they are."""
        self.next_turn = None
        self.waiting.clear()
        self._remove_ended(others=True)

    def _remove_ended(self, *, others: bool = False) -> None:
        """Remove the rows that have ended, or all."""
        *ended, invalid = torch.cat([self.ended_b, self.invalid[None]]).tolist()  # one wait for the device
        self.written.supports.flush(FLUSH_EVERY)
        if invalid:
            raise TrainingError(NOT_FINITE)
        full = [others or self.lengths[row] == self.limits[row] for row in self.rows]
        gone = [place for place in range(len(self.rows)) if ended[place] or full[place]]
        if not gone:
            return
        assert self.cache is not None
        self.done += len(gone)
        order = self.cache.drop(gone)
        left = len(order) - len(gone)
        self.ended_rows += (rows := [self.rows[place] for place in order[left:]])
        self.rows = [self.rows[place] for place in order[:left]]
        order_b = self._on_device(order[:left])
        self.rows_b, self.newest_b, self.ended_b = (t[order_b] for t in (self.rows_b, self.newest_b, self.ended_b))
        if self.on_ended is not None:
            self._collect(sorted(rows))
        self._select_rows(self.rows_b)

    def _select_rows(self, rows_b: torch.Tensor) -> None:
        processors: Sequence[object] = self.processors
        for processor in processors:
            if isinstance(processor, RowAware):
                processor.select_rows(rows_b)

    def _on_device(self, numbers: Sequence[int]) -> torch.Tensor:
        return on_device(numbers, self.device)

    def _collect(self, rows: Sequence[int]) -> None:
        """Read the completions of these rows, and report those that have ended."""
        lengths, limits = ([numbers[row] for row in rows] for numbers in (self.lengths, self.limits))
        for row, one in zip(rows, self.written.read(rows, lengths, limits, self.eos_token_ids), strict=True):
            self.found[row] = one
            if self.on_ended is not None and not one.unfinished:
                self.on_ended(row, one)

    def results(self) -> list[Completion]:
        """The completions; the rows are left for the next turn."""
        self._collect([row for row in range(len(self.prompt_ids)) if row not in self.found])
        completions = [self.found[row] for row in range(len(self.prompt_ids))]
        if self.turn is not None and self.cache is not None:
            kept = dict(zip(self.ended_rows, self.cache.ended, strict=True))
            for row, (ids, one) in enumerate(zip(self.prompt_ids, completions, strict=True)):
                ended = kept.get(row)  # None: interrupted before it was read
                self.turn.rows.append(TurnRow([*ids, *one.ids], None if ended is None else Kept(self.cache, ended)))
        return completions


def _groups(prompt_ids: Sequence[Sequence[int]], without: Collection[int]) -> list[_Group]:
    rows = [row for row in range(len(prompt_ids)) if row not in without]
    return [_Group(ids, list(same)) for ids, same in groupby(rows, key=lambda row: list(prompt_ids[row]))]
