"""What is logged per micro-batch when micro-batches are sorted, cut into pieces, or have lost rows.

TRL adds one number per micro-batch and averages them when it logs. That gives a token in a micro-batch of short rows
more weight than another, which evens out while rows are shuffled, and does not once they are sorted; so each number is
scaled here such that the average over an optimiser step counts every token of it alike (every row, for a metric that
has one value per row).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from covey.training.pieces import Plan

_SUMS = ("tokens", "rows", "all_tokens", "all_rows")


def weigh(plans: Sequence[Plan], *, by_rows: bool, sorted_rows: bool) -> None:
    """Write into the plans of an optimiser step's micro-batches how their metrics count; nothing where TRL's will do.

    Args:
        plans: theirs.
        by_rows: whether ratios are one per sequence, so that shares of clipped ones count rows.
        sorted_rows: whether rows stand where they do because of their length.
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
def one_entry_each(metrics: dict[str, list[float]], plan: Plan | None) -> Iterator[None]:
    """Within, every piece of a micro-batch may add a number to a metric; afterwards they are one.

    `_min` and `_max` are the least and the largest. Rows that were left out were not clipped, and count wherever it is
    about clipping; in other means they cannot, as there is no saying what theirs would have been.
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
        whole = _whole(name, entries, plan)
        metrics[name][known:] = [] if whole is None else [whole]
        if not metrics[name]:
            del metrics[name]


def _whole(name: str, entries: Sequence[float], plan: Plan) -> float | None:
    among = plan["among"]
    about_clipping = "clip" in name
    if name.endswith(("_min", "_max")):
        known = [entry for entry in entries if not math.isnan(entry)]
        if about_clipping and plan["all_rows"] > sum(plan["rows"]):
            known.append(0.0)
        extreme = min if name.endswith("_min") else max
        return extreme(known) if known else math.nan
    unit = "rows" if (about_clipping and among["by_rows"]) or "seq_mean" in name else "tokens"
    total = among[f"all_{unit}" if about_clipping else unit]
    summed = sum(entry * count for entry, count in zip(entries, plan[unit], strict=True) if count)
    return summed * among["micro_batches"] / total if total else None


def _total(value: Any) -> int:
    return int(sum(value) if isinstance(value, list) else value)
