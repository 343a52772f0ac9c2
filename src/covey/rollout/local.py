"""Sampling where the prompt of a group is read once and completions that have ended leave the batch.

It draws from the same distribution as transformers' `generate`; with temperature 0 it gives the same tokens. With one
state of the random number generator the drawn tokens are others than `generate`'s: they are drawn from fewer numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from covey.errors import TrainingError
from covey.rollout.decode import PlainDecoder, plain_decoder
from covey.rollout.draw import Drawn, LogitsProcessor, RowAware, Sampling, draw, process
from covey.rollout.prompt_cache import SharedPromptCache, windows_of
from covey.rollout.shared_attention import CACHE, SharedAttention, base_model
from covey.rollout.weight_order import columns_first

PREFILL_TOKENS = 8192
"""Most tokens of prompts, padding included, that are read in one forward, unless one prompt is longer."""

GPU_LOOKS = 16
"""On a GPU, tokens between two looks at which completions have ended: looking makes the CPU wait for it."""


@dataclass(frozen=True, slots=True)
class Ends:
    """When a completion ends, and what fills the place before a shorter prompt."""

    max_new_tokens: int
    eos_token_ids: Sequence[int]
    pad_token_id: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """One completion."""

    ids: list[int]
    """Its tokens, with the end-of-sequence token where it ended by itself."""
    logps: list[float] | None
    """Log-probability of each token at the sampling temperature, after logits processors and the repetition penalty,
    before top-k, top-p and min-p; None if they were not asked for."""


def sample(
    model: PreTrainedModel | Any,
    prompt_ids: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    ends: Ends,
    logits_processors: Sequence[LogitsProcessor] = (),
    max_tokens_in_flight: int | None = None,
    generator: torch.Generator | None = None,
    return_logps: bool = False,
    any_works: Callable[[bool], bool] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Sampled]:
    """Sample one completion per prompt; equal prompts that follow one another share their prompt's computation.

    The outcome is a function of the weights, the prompts and the generator's state, which moves on by one number per
    completion and step. While all completions are under way from the start, the numbers of one of them do not depend
    on when others end.

    Args:
        model: a causal language model, possibly with LoRA, for which `covey.rollout.obstacle` found no obstacle. It is
            used in the mode (training or evaluation) that it is in.
        prompt_ids: token ids of the prompts, without padding.
        sampling: how to draw.
        ends: when to stop.
        logits_processors: applied in order to the logits of each next token; `RowAware` ones are told the rows.
        max_tokens_in_flight: most tokens, of prompts and of completions at their longest, that are kept at a time; as
            completions end, further prompts enter. At least one prompt with all its completions is always taken on.
            None takes on all at once.
        generator: for the random numbers; None takes the device's own.
        return_logps: whether to keep the log-probabilities of the drawn tokens.
        any_works: given whether this process has anything left to compute, says whether any process has. Needed where
            parameters are sharded, since every process must then take part in every forward; None for the others.
        on_progress: called with the number of completions done so far, whenever it has grown.

    Raises:
        TrainingError: the model gives logits that are no distribution.
        ValueError: a prompt is empty.
    """
    if any(not ids for ids in prompt_ids):
        raise ValueError("a prompt without any token cannot be continued")
    decoder = plain_decoder(model) if any_works is None else None
    run = _Run(model, prompt_ids, sampling, ends, logits_processors, return_logps, generator, decoder)
    by_modules = any_works is None and decoder is None
    reported = 0
    with torch.no_grad(), run.attention, ExitStack() as order:
        while any_works(run.works) if any_works is not None else run.works:
            entering = run.next_prompts(max_tokens_in_flight)
            if entering and by_modules:
                by_modules = False
                if not _reads_mixed(run, entering):
                    order.enter_context(columns_first(model))
            elif entering:
                run.read(entering)
            elif run.works:
                run.write()
            else:
                run.stand_by()
            if on_progress is not None and run.done > reported:
                reported = run.done
                on_progress(reported)
    return run.results()


@dataclass(slots=True)
class _Group:
    """Equal prompts that follow one another."""

    first: int
    ids: Sequence[int]
    count: int


@dataclass
class _Run:
    """One call of `sample`. Row numbers are places in `prompt_ids`; places are those in the batch."""

    model: Any
    prompt_ids: Sequence[Sequence[int]]
    sampling: Sampling
    ends: Ends
    processors: Sequence[LogitsProcessor]
    return_logps: bool
    generator: torch.Generator | None
    decoder: PlainDecoder | None
    rows: list[int] = field(default_factory=list)
    done: int = 0
    cache: SharedPromptCache | None = None

    def __post_init__(self) -> None:
        self.attention = SharedAttention(self.model)
        self.device = self.model.device
        self.waiting = _groups(self.prompt_ids)
        self.longest = max((len(ids) for ids in self.prompt_ids), default=0)
        shape = (len(self.prompt_ids), self.longest + self.ends.max_new_tokens)
        sequences = torch.full(shape, self.ends.pad_token_id, dtype=torch.long)
        for row, ids in enumerate(self.prompt_ids):
            sequences[row, self.longest - len(ids) : self.longest] = torch.tensor(ids)
        self.sequences = sequences.to(self.device)
        self.logps = torch.zeros(shape, device=self.device) if self.return_logps else None
        self.eos = torch.tensor(list(self.ends.eos_token_ids), dtype=torch.long, device=self.device)
        self.written = [0] * len(self.prompt_ids)
        self.rows_b = self._on_device([])
        self.newest_b = self._on_device([])
        self.ended_b = torch.zeros(0, dtype=torch.bool, device=self.device)
        self.unsound = torch.zeros((), dtype=torch.bool, device=self.device)
        self.since_look = 0

    @property
    def works(self) -> bool:
        return bool(self.waiting or self.rows)

    def next_prompts(self, budget: int | None) -> list[_Group]:
        """The groups that enter now: those that fit the budget and one forward, in order."""
        entering: list[_Group] = []
        reserved = sum(len(self.prompt_ids[row]) for row in self._first_rows()) + self._room(len(self.rows))
        for group in self.waiting:
            need = len(group.ids) + self._room(group.count)
            widest = max(len(group.ids), *(len(other.ids) for other in entering), 0)
            too_wide = widest * (len(entering) + 1) > PREFILL_TOKENS
            too_many = budget is not None and reserved + need > budget
            if (too_wide and entering) or (too_many and (entering or self.rows)):
                break
            entering.append(group)
            reserved += need
        del self.waiting[: len(entering)]
        return entering

    def _room(self, rows: int) -> int:
        return rows * self.ends.max_new_tokens

    def _first_rows(self) -> list[int]:
        """A row of each prompt that is in the batch."""
        if self.cache is None:
            return []
        return list(dict(zip(self.cache.prompt_of, self.rows, strict=True)).values())

    def read(self, groups: list[_Group]) -> None:
        """Compute prompts and draw the first token of each of their completions."""
        self.attention.share(False)
        logits_PV, prefilled = prefill(self.model, [group.ids for group in groups], self.ends.pad_token_id)
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
        repeats_P = self._on_device(counts)
        self._take(logits_PV.repeat_interleave(repeats_P, 0), slice(old, None), changed=True)

    def write(self) -> None:
        """Draw one more token of every completion in the batch."""
        self._take(self._step(), slice(None), changed=False)

    def _step(self) -> torch.Tensor:
        """The logits of the next token of every row. The first time, both ways, whatever the weights are by then."""
        assert self.cache is not None
        decoder = self.decoder
        if decoder is not None and decoder.trusted:
            return decoder.step(self.cache, self.newest_b)
        self.attention.share(True)
        found_bV = None if decoder is None else decoder.look(self.cache, self.newest_b)
        logits_bV = step(self.model, self.cache, self.newest_b)
        if decoder is not None and found_bV is not None and not decoder.compare(found_bV, logits_bV):
            self.decoder = None
        return logits_bV

    def stand_by(self) -> None:
        """Take part in a forward of the other processes."""
        self.attention.share(False)
        self.model(input_ids=self.sequences.new_zeros(1, 1))

    def _take(self, logits_bV: torch.Tensor, places: slice, *, changed: bool) -> None:
        """Draw from the logits of these places of the batch, and let go of the completions that have ended."""
        rows, rows_b = self.rows[places], self.rows_b[places]
        if changed:
            self._tell(rows_b)
        drawn = self._draw(logits_bV, rows, rows_b)
        self.newest_b[places] = drawn.tokens_b
        self.ended_b[places] |= torch.isin(drawn.tokens_b, self.eos)
        self.unsound |= ~drawn.sound_b.all()
        for row in rows:
            self.written[row] += 1
        full = any(self.written[row] == self.ends.max_new_tokens for row in rows)
        self.since_look += 1
        if full or self.device.type == "cpu" or self.since_look >= GPU_LOOKS:
            self.since_look = 0
            self._let_go()
        elif changed and len(rows) < len(self.rows):
            self._tell(self.rows_b)

    def _draw(self, logits_bV: torch.Tensor, rows: list[int], rows_b: torch.Tensor) -> Drawn:
        logits_bV = logits_bV.float()
        if self.processors or self.sampling.repetition_penalty != 1.0:
            sequences_bS, starts_b = self._so_far(rows, rows_b)
            logits_bV = process(logits_bV, sequences_bS, starts_b, self.sampling, self.processors)
        uniform_B = torch.empty(0)
        if self.sampling.temperature > 0:
            uniform_B = torch.rand(
                len(self.prompt_ids), dtype=torch.float64, device=self.device, generator=self.generator
            )[rows_b]
        drawn = draw(logits_bV, uniform_B, self.sampling, logps=self.return_logps)
        columns_b = self._columns(rows)
        self.sequences[rows_b, columns_b] = drawn.tokens_b
        if self.logps is not None and drawn.logps_b is not None:
            self.logps[rows_b, columns_b] = drawn.logps_b
        return drawn

    def _columns(self, rows: list[int]) -> torch.Tensor | int:
        """Where the next token of each row is kept."""
        counts = [self.written[row] for row in rows]
        if min(counts) == max(counts):
            return self.longest + counts[0]
        return self._on_device(counts) + self.longest

    def _so_far(self, rows: list[int], rows_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens so far, padded on the left, and where each row's own begin."""
        counts = [self.written[row] for row in rows]
        lengths = [len(self.prompt_ids[row]) + count for row, count in zip(rows, counts, strict=True)]
        end, width = self.longest + max(counts), max(lengths)
        starts_b = width - self._on_device(lengths)
        if min(counts) == max(counts):
            return self.sequences[rows_b, end - width : end], starts_b
        late_b1 = (max(counts) - self._on_device(counts))[:, None]
        columns_bS = torch.arange(end - width, end, device=self.device) - late_b1
        found_bS = self.sequences[rows_b[:, None], columns_bS.clamp(min=0)]
        padding_bS = torch.arange(width, device=self.device) < starts_b[:, None]
        return found_bS.masked_fill(padding_bS, self.ends.pad_token_id), starts_b

    def _let_go(self) -> None:
        if bool(self.unsound):
            raise TrainingError(
                "The model's logits are not numbers any more (NaN or infinite), so no token can be drawn from them. "
                "Its weights have most likely diverged: lower training.learning_rate, or go back to a checkpoint."
            )
        limit = self.ends.max_new_tokens
        ended = self.ended_b.tolist()
        gone = [place for place, row in enumerate(self.rows) if ended[place] or self.written[row] == limit]
        if not gone:
            return
        assert self.cache is not None
        self.done += len(gone)
        order = self.cache.drop(gone)
        self.rows = [self.rows[place] for place in order]
        order_b = self._on_device(order)
        self.rows_b, self.newest_b, self.ended_b = (t[order_b] for t in (self.rows_b, self.newest_b, self.ended_b))
        self._tell(self.rows_b)

    def _tell(self, rows_b: torch.Tensor) -> None:
        told: Sequence[object] = self.processors
        for processor in told:
            if isinstance(processor, RowAware):
                processor.select_rows(rows_b)

    def _on_device(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)

    def results(self) -> list[Sampled]:
        """The completions, each up to its first end-of-sequence token."""
        eos = set(self.ends.eos_token_ids)
        completions = self.sequences[:, self.longest :].tolist()
        logps = None if self.logps is None else self.logps[:, self.longest :].tolist()
        found = []
        for row, ids in enumerate(completions):
            ids = ids[: self.written[row]]
            end = next((place for place, token in enumerate(ids, start=1) if token in eos), len(ids))
            found.append(Sampled(ids[:end], None if logps is None else logps[row][:end]))
        return found


def _reads_mixed(run: _Run, entering: list[_Group]) -> bool:
    """Read these prompts, and say whether the model computed in mixed precision: accelerate turns it on inside of a
    forward only."""
    found: list[bool] = []
    kind = run.model.device.type
    looks = base_model(run.model).get_input_embeddings()
    with looks.register_forward_pre_hook(lambda *_: found.append(torch.is_autocast_enabled(kind))):
        run.read(entering)
    return any(found)


def _groups(prompt_ids: Sequence[Sequence[int]]) -> list[_Group]:
    groups = []
    for ids, same in groupby(range(len(prompt_ids)), key=lambda row: list(prompt_ids[row])):
        places = list(same)
        groups.append(_Group(places[0], ids, len(places)))
    return groups


def prefill(model: Any, prompts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, DynamicCache]:
    """Read prompts with the model's own attention.

    Returns:
        The logits of the token after each prompt, `[P, V]`, and the filled cache.
    """
    longest = max(map(len, prompts))
    ids_PL = torch.tensor([[pad] * (longest - len(ids)) + list(ids) for ids in prompts], device=model.device)
    cache = DynamicCache(config=model.config)
    masks: dict[str, torch.Tensor] = {}
    if min(map(len, prompts)) < longest:
        mask_PL = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts], device=model.device)
        masks = {"attention_mask": mask_PL, "position_ids": (mask_PL.cumsum(-1) - 1).clamp(min=0)}
    out = model(input_ids=ids_PL, past_key_values=cache, use_cache=True, logits_to_keep=1, **masks)
    return out.logits[:, -1], cache


def step(model: Any, cache: SharedPromptCache, tokens_b: torch.Tensor) -> torch.Tensor:
    """Append a token to every row, with the shared attention in place, and give the logits of the next, `[b, V]`."""
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
