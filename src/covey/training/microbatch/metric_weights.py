"""Metrics per micro-batch when micro-batches are sorted, split into chunks, or have lost rows.

TRL appends one number per micro-batch and averages them when it logs. A token in a micro-batch of short rows then has
more weight than another, which evens out while rows are shuffled, but not once they are sorted. So each number is
scaled such that the average over an optimiser step counts every token alike (every row, for a metric with one value
per row).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from covey.training.microbatch.microbatch_split import ChunkPlan, StepTotals


def with_totals(plans: Sequence[ChunkPlan], *, by_rows: bool, sorted_rows: bool) -> list[ChunkPlan]:
    """The plans of an optimiser step's micro-batches with the totals for metrics, where TRL's average would be wrong.

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
