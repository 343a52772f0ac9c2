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
from typing import Any

from covey.training.microbatch.microbatch_split import Plan

_SUMS = ("tokens", "rows", "all_tokens", "all_rows")


def weigh(plans: Sequence[Plan], *, by_rows: bool, sorted_rows: bool) -> None:
    """Write the metric weights into the plans of an optimiser step's micro-batches, where TRL's own would be wrong.

    Args:
        plans: of the micro-batches.
        by_rows: whether ratios are per sequence, so that clip fractions count rows.
        sorted_rows: whether rows are sorted by length.
    """
    left_out = any(plan["all_rows"] > sum(plan["rows"]) for plan in plans)
    together = sorted_rows and len(plans) > 1
    for plan in plans:
        if together or left_out:
            among = plans
        elif len(plan["ends"]) > 1:
            among = [plan]
        else:
            continue
        sums = {name: sum(_total(other[name]) for other in among) for name in _SUMS}
        plan["among"] = {**sums, "micro_batches": len(among), "by_rows": by_rows, "left_out": left_out}


@contextmanager
def merged_entries(metrics: dict[str, list[float]], plan: Plan | None) -> Iterator[None]:
    """Context manager: every chunk of a micro-batch may append to a metric; on exit the entries are merged into one.

    `_min` and `_max` take the minimum and maximum. Rows that were left out were not clipped, and count in clip metrics;
    in other means they cannot, as their values are not known.
    """
    before = {name: len(values) for name, values in metrics.items()}
    yield
    if plan is None or "among" not in plan:
        return
    for name in list(metrics):
        known = before.get(name, 0)
        entries = metrics[name][known:]
        if len(entries) != len(plan["ends"]):
            continue
        merged = _merged(name, entries, plan)
        metrics[name][known:] = [] if merged is None else [merged]
        if not metrics[name]:
            del metrics[name]


def _merged(name: str, entries: Sequence[float], plan: Plan) -> float | None:
    among = plan["among"]
    clip_metric = "clip" in name
    if name.endswith(("_min", "_max")):
        known = [entry for entry in entries if not math.isnan(entry)]
        if clip_metric and plan["all_rows"] > sum(plan["rows"]):
            known.append(0.0)
        extreme = min if name.endswith("_min") else max
        return extreme(known) if known else math.nan
    unit = "rows" if (clip_metric and among["by_rows"]) or "seq_mean" in name else "tokens"
    total = among[f"all_{unit}" if clip_metric else unit]
    summed = sum(entry * count for entry, count in zip(entries, plan[unit], strict=True) if count)
    return summed * among["micro_batches"] / total if total else None


def _total(value: Any) -> int:
    return int(sum(value) if isinstance(value, list) else value)
