"""Splitting a scored generation batch into micro-batches. Knows tensors and plain numbers, not TRL.

Rows of a group share a micro-batch where the sizes allow it, a micro-batch is padded to its own longest row only, and
rows without a gradient are dropped. The gradient of an optimiser step does not change:

- *Which rows an optimiser step learns from is drawn at random, never by length.* Groups are put in a random order (by
  the one permutation that TRL draws, so that all later random numbers stay the same), the rows of a group in a random
  order too, and the optimiser steps take their rows from that list. Only within the rows of one optimiser step are they
  then sorted by length. TRL shuffles single rows instead: it draws other rows for an optimiser step, as randomly.
- Where the loss is not a sum over rows (`bnpo`, an entropy bonus, a router's loss, a threshold on the entropy), it
  depends on which rows share a micro-batch. There each micro-batch keeps the rows that TRL gives it.
- A row without a gradient adds nothing to a sum, so it can be left out while denominators still count it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covey.config import SpeedConfig
from covey.config.groups.sampling import BNPO, check_token_budget, coupling
from covey.errors import ConfigError
from covey.log_once import log_once
from covey.model.device import on_device
from covey.training.chunks import (
    COMPLETION_KEYS,
    PLAN,
    PROMPT_KEYS,
    SEQUENCE_KEYS,
    Batch,
    ChunkPlan,
    RowShape,
    StepTotals,
    make_dummy_rows,
    plan_chunks,
    split_rows,
    trim_padding,
)

logger = logging.getLogger(__name__)

_IMAGES = ("pixel_values", "image_grid_thw", "image_sizes", "num_images", "image_position_ids", "spatial_shapes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What must be known of the loss before rows can be moved or left out."""

    loss_type: str
    """TRL's name."""
    coupling: str | None = None
    """Why more than the denominators depends on which rows share a micro-batch; None when nothing does."""
    by_sequence: bool = False
    """Whether ratios, and clip fractions, are per sequence rather than per token."""

    @property
    def is_sum_over_rows(self) -> bool:
        """Whether the loss of an optimiser step is the same however its rows are spread over micro-batches."""
        return self.coupling is None and self.loss_type != "bnpo"

    def weight(self, rows: Sequence[RowShape], of: Sequence[RowShape]) -> float:
        """The factor that turns the loss of some rows into their part of the loss of all of them."""
        if self.loss_type in ("cispo", "dapo", "vespo"):  # the denominator is that of the generation batch
            return 1.0
        if self.loss_type == "bnpo":
            return sum(row.counted for row in rows) / max(sum(row.counted for row in of), 1)
        return len(rows) / len(of)


class Batching:
    """How the generation batches of a run become micro-batches."""

    def __init__(
        self,
        speed: SpeedConfig,
        loss: Loss,
        *,
        num_generations: int,
        micro_batches: int,
        accumulation: int,
        multiple_of: int | None = None,
    ) -> None:
        """
        Args:
            loss: the run's.
            num_generations: rows of a group, G.
            micro_batches: how many a generation batch is split into on each process.
            accumulation: micro-batches per optimiser step.
            multiple_of: padded widths are a multiple of this.
        """
        self._speed, self._loss = speed, loss
        self._num_generations, self._micro_batches = num_generations, micro_batches
        self._window = window(micro_batches, accumulation)
        self._multiple = multiple_of or 1

    @property
    def is_plain(self) -> bool:
        """Whether TRL's own micro-batches are used."""
        return not (self._speed.trim or self._speed.skip_zero) and self._speed.max_tokens is None

    @property
    def _sorts(self) -> bool:
        return self._speed.trim and self._loss.is_sum_over_rows

    def split(
        self,
        batch: Batch,
        *,
        beta: float,
        packed: bool = False,
        process: int = 0,
        gather: Callable[[Tensor], Tensor] | None = None,
        finish: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> list[Batch]:
        """The micro-batches of a scored generation batch, in training order.

        Draws one permutation of all rows from torch's global generator, as TRL does.

        Args:
            batch: of this process; `prompt_mask` `[B, L]`, `completion_mask` `[B, T]`, `advantages` `[B]` and the rest.
            beta: weight of the KL term.
            packed: whether rows are packed: no padding, the prompt of a group once; `max_tokens` counts these tokens.
            process: index of this process.
            gather: concatenates a tensor over all processes; None with a single process.
            finish: converts what `batch` keeps as one list entry per row to what the model takes.

        Returns:
            Micro-batches with the same keys, and under `PLAN` their chunk plans: the chunks that go through the model,
            and how they count.
        """
        if self._speed.max_tokens is not None and "pixel_values" in batch:
            raise ConfigError(
                "speed.max_tokens splits a micro-batch by its tokens, and images cannot be split that way: set "
                "speed.max_tokens=null and use a smaller per_device_train_batch_size instead."
            )
        rows = self._rows(batch, process)
        permutation = torch.randperm(len(rows)).tolist()
        size = len(rows) // self._micro_batches
        order = self._order(rows, permutation, size)
        skip = self._skips(beta)
        ordered = [rows[row] if skip else rows[row]._replace(has_gradient=True) for row in order]
        all_rows = self._gathered(ordered, gather, batch["advantages"].device)
        process = process if len(all_rows) > 1 else 0
        micro_batches, plans = [], []
        for start in range(0, size * self._micro_batches, size):
            per_process = [theirs[start : start + size] for theirs in all_rows]
            places = self._chunks(per_process, packed)
            taken = [order[start + place] for chunk in places[process] for place in chunk or [0]]
            micro, plan = self._planned(_take(batch, taken), per_process, places, process)
            micro_batches.append(finish(micro))
            plans.append(plan)
        for start in range(0, len(plans), self._window):
            step = slice(start, start + self._window)
            plans[step] = _with_totals(plans[step], by_rows=self._loss.by_sequence, sorted_rows=self._sorts)
        return [{**micro, PLAN: plan} for micro, plan in zip(micro_batches, plans, strict=True)]

    def _rows(self, batch: Batch, process: int) -> list[RowShape]:
        """Lengths and the like of each row, copied from the device at once."""
        prompt_mask, mask = batch["prompt_mask"], batch["completion_mask"]
        length = prompt_mask.shape[1]
        columns = torch.arange(1, max(length, mask.shape[1]) + 1, device=mask.device)
        prompt_B = (prompt_mask.bool() * columns[:length].flip(0)).amax(dim=1)
        completion_B = (mask.bool() * columns[: mask.shape[1]]).amax(dim=1)
        counted_B = (mask * batch["tool_mask"] if batch.get("tool_mask") is not None else mask).sum(dim=1)
        has_gradient_B = (batch["advantages"].reshape(len(mask), -1) != 0).any(dim=1) & (counted_B > 0)
        if not self._speed.trim or self._unknown(batch):
            prompt_B = torch.full_like(prompt_B, length)
            completion_B = torch.full_like(completion_B, mask.shape[1])
        table = torch.stack([prompt_B, completion_B, counted_B, has_gradient_B.to(counted_B)], dim=1).tolist()
        first = process * len(table)
        return [
            RowShape(prompt, completion, counted, bool(has_gradient), (first + place) // self._num_generations)
            for place, (prompt, completion, counted, has_gradient) in enumerate(table)
        ]

    def _unknown(self, batch: Batch) -> bool:
        """Whether there is an unknown tensor that may have one column per prompt or completion token."""
        length, width = batch["prompt_ids"].shape[1], batch["completion_ids"].shape[1]
        known = {*PROMPT_KEYS, *COMPLETION_KEYS, *SEQUENCE_KEYS, *_IMAGES}
        found = [
            key
            for key, value in batch.items()
            if key not in known
            and isinstance(value, Tensor)
            and value.ndim > 1
            and value.shape[1] in (length, width, length + width)
        ]
        if found:
            log_once(
                logger, "speed.trim does not apply: it is not known how to trim %s.", ", ".join(found), shown=False
            )
        return bool(found)

    def _order(self, rows: Sequence[RowShape], permutation: Sequence[int], size: int) -> list[int]:
        if not self._speed.trim:
            return list(permutation)
        if self._sorts:
            shuffled = shuffle_groups([row.group for row in rows], permutation)
            return sort_within(shuffled, rows, size * self._window)
        why = self._loss.coupling or BNPO
        log_once(logger, "speed.trim does not move rows between micro-batches: %s.", why, shown=False)
        return sort_within(permutation, rows, size)

    def _skips(self, beta: float) -> bool:
        if not self._speed.skip_zero:
            return False
        why = self._loss.coupling
        if beta != 0:
            why = "with training.beta other than 0, the KL term gives every completion a gradient"
        if why is not None:
            log_once(logger, "speed.skip_zero does not apply: %s.", why, shown=False)
        return why is None

    def _gathered(
        self, rows: list[RowShape], gather: Callable[[Tensor], Tensor] | None, device: torch.device
    ) -> list[list[RowShape]]:
        """The rows of every process: all must agree on the number of chunks of a micro-batch."""
        if gather is None:
            return [rows]
        table = gather(torch.tensor(rows, device=device, dtype=torch.long)).tolist()
        found = [
            RowShape(prompt, completion, counted, bool(has_gradient), group)
            for prompt, completion, counted, has_gradient, group in table
        ]
        return [found[start : start + len(rows)] for start in range(0, len(found), len(rows))]

    def _chunks(self, per_process: Sequence[Sequence[RowShape]], packed: bool) -> list[list[list[int]]]:
        """For each process the indices of the rows of each chunk, equally many chunks for all; none for a dummy."""
        budget = self._speed.max_tokens

        def chunks(rows: Sequence[RowShape], at_least: int) -> list[list[int]]:
            return split_rows(rows, budget, packed=packed, multiple_of=self._multiple, at_least=at_least)

        needed = max(1, *(len(chunks(rows, 1)) for rows in per_process))
        found = [chunks(rows, needed) for rows in per_process]
        if budget is not None and any(
            row.has_gradient and row.prompt + row.completion > budget for row in per_process[0]
        ):
            text = "speed.max_tokens=%d is less than one prompt and completion: such a row is a chunk by itself."
            log_once(logger, text, budget, shown=False)
        return [[*own, *[[]] * (needed - len(own))] for own in found]

    def _planned(
        self,
        micro: Batch,
        per_process: Sequence[Sequence[RowShape]],
        places: Sequence[Sequence[Sequence[int]]],
        process: int,
    ) -> tuple[Batch, ChunkPlan]:
        chunks = [
            [[rows[p] for p in chunk] for chunk in theirs] for rows, theirs in zip(per_process, places, strict=True)
        ]
        mine = chunks[process]
        images = any(key in micro for key in _IMAGES)
        if dummies := mine.count([]):
            micro = make_dummy_rows(micro, dummies, keeps_prompt=images)
        plan = plan_chunks(
            chunks,
            [row for rows in per_process for row in rows],
            process,
            weights=[self._loss.weight(rows, per_process[process]) for rows in mine],
            multiple_of=self._multiple,
            dummy_prompt=micro["prompt_ids"].shape[1] if images else 1,
        )
        prompt, completion = (max(widths) for widths in zip(*plan.widths, strict=True))
        return trim_padding(micro, prompt, completion), plan


def batching_for(speed: SpeedConfig, args: Any, *, router_loss: bool) -> Batching:
    """The batching of a run.

    Args:
        args: the run's GRPOConfig.
        router_loss: whether a mixture of experts adds its load-balancing loss.

    Raises:
        ConfigError: a token budget cannot be combined with the rest.
    """
    check_token_budget(speed.max_tokens, args, router_loss=router_loss)
    return Batching(
        speed,
        Loss(
            loss_type=args.loss_type,
            coupling=coupling(args, router_loss=router_loss),
            by_sequence=args.importance_sampling_level == "sequence",
        ),
        num_generations=args.num_generations,
        micro_batches=args.steps_per_generation,
        accumulation=args.gradient_accumulation_steps,
        multiple_of=args.pad_to_multiple_of,
    )


def _take(batch: Batch, rows: Sequence[int]) -> Batch:
    device = batch["prompt_ids"].device
    index = on_device(rows, device)

    def rows_of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[index if value.device == device else index.to(value.device)] if value.ndim else value
        return [value[row] for row in rows] if isinstance(value, (list, tuple)) else value

    return {key: rows_of(value) for key, value in batch.items()}


def window(micro_batches: int, accumulation: int) -> int:
    """How many consecutive micro-batches of a generation batch are guaranteed to belong to one optimiser step."""
    if accumulation % micro_batches == 0:
        return micro_batches
    return accumulation if micro_batches % accumulation == 0 else 1


def shuffle_groups(groups: Sequence[int], permutation: Sequence[int]) -> list[int]:
    """A random order of groups, and of the rows within each.

    A group's place is that of its first row in the permutation, so that large groups do not come earlier than small.

    Args:
        groups: the group of each row.
        permutation: of all rows; the only source of randomness.
    """
    place = {row: index for index, row in enumerate(permutation)}
    turn: dict[int, int] = {}
    for row, group in enumerate(groups):
        turn.setdefault(group, place[row])
    return sorted(range(len(groups)), key=lambda row: (turn[groups[row]], place[row]))


def sort_within(order: Sequence[int], rows: Sequence[RowShape], size: int) -> list[int]:
    """Sort within each stretch of `size` rows: groups stay together, longest first."""
    found: list[int] = []
    for start in range(0, len(order), size):
        stretch = order[start : start + size]
        longest: dict[int, int] = {}
        turn: dict[int, int] = {}
        for index, row in enumerate(stretch):
            group = rows[row].group
            longest[group] = max(longest.get(group, 0), rows[row].completion)
            turn.setdefault(group, index)
        found += sorted(
            stretch, key=lambda row: (-longest[rows[row].group], turn[rows[row].group], -rows[row].completion)
        )
    return found


def _with_totals(plans: Sequence[ChunkPlan], *, by_rows: bool, sorted_rows: bool) -> list[ChunkPlan]:
    """The plans of an optimiser step's micro-batches with the totals for metrics, where TRL's average would be wrong.

    TRL appends one number per micro-batch to a metric and averages them when it logs, so a token in a micro-batch of
    short rows has more weight than another. That evens out while rows are shuffled, but not once they are sorted. So
    each number is scaled such that the average over an optimiser step counts every token alike (every row, for a metric
    with one value per row, and for shares of clipped tokens). The logged entropy, and `vespo/phi_seq_mean`, are those
    of the rows that were computed.

    Args:
        plans: of the micro-batches.
        by_rows: whether ratios are per sequence, so that clip fractions count rows.
        sorted_rows: whether rows are sorted by length.
    """
    left_out = any(plan.all_rows > sum(plan.rows) for plan in plans)
    together = left_out or (sorted_rows and len(plans) > 1)

    def totals(among: Sequence[ChunkPlan]) -> StepTotals:
        return StepTotals(
            tokens=sum(sum(plan.tokens) for plan in among),
            rows=sum(sum(plan.rows) for plan in among),
            all_tokens=sum(plan.all_tokens for plan in among),
            all_rows=sum(plan.all_rows for plan in among),
            micro_batches=len(among),
            by_rows=by_rows,
        )

    if together:
        return [replace(plan, totals=totals(plans)) for plan in plans]
    return [replace(plan, totals=totals([plan])) if len(plan.ends) > 1 else plan for plan in plans]


@contextmanager
def merged_entries(metrics: dict[str, list[float]], plan: ChunkPlan | None) -> Iterator[None]:
    """Context manager: every chunk of a micro-batch may append to a metric; on exit the entries are merged into one.

    `_min` and `_max` take the minimum and maximum. Rows that were left out were not clipped, and count in clip metrics;
    in other means they cannot, as their values are not known.
    """
    before = {name: len(values) for name, values in metrics.items()}
    yield
    if plan is None or plan.totals is None:
        return
    for name in list(metrics):
        known = before.get(name, 0)
        entries = metrics[name][known:]
        if len(entries) != len(plan.ends):
            continue
        merged = _merged(name, entries, plan, plan.totals)
        metrics[name][known:] = [] if merged is None else [merged]
        if not metrics[name]:
            del metrics[name]


def _merged(name: str, entries: Sequence[float], plan: ChunkPlan, totals: StepTotals) -> float | None:
    clip_metric = "clip" in name
    if name.endswith(("_min", "_max")):
        known = [entry for entry in entries if not math.isnan(entry)]
        if clip_metric and plan.all_rows > sum(plan.rows):
            known.append(0.0)
        extreme = min if name.endswith("_min") else max
        return extreme(known) if known else math.nan
    rows = (clip_metric and totals.by_rows) or "seq_mean" in name
    counts = plan.rows if rows else plan.tokens
    totals_of_both = (totals.all_rows, totals.all_tokens) if clip_metric else (totals.rows, totals.tokens)
    total = totals_of_both[0 if rows else 1]
    summed = sum(entry * count for entry, count in zip(entries, counts, strict=True) if count)
    return summed * totals.micro_batches / total if total else None
