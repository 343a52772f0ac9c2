"""Figures as text: values, 95% intervals, differences and p-values. Pages, tables and terminal format them here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from covey.evaluation.estimators import Estimate
from covey.evaluation.paired import Comparison
from covey.runlog import names

UNDEFINED = "n/a"


def is_share(metric: str) -> bool:
    """Whether a metric of an evaluation lies in [0, 1] and is shown in percent: all but rewards, lengths and counts."""
    counts = (names.LENGTH, *names.PER_EPISODE)
    return metric not in counts and metric.partition("/")[0] != names.MEAN_REWARD and not _counts_answers(metric)


def value_text(value: float, metric: str = names.ACCURACY) -> str:
    """`63.2%`, a reward as `0.632`, a length as `63.2`.

    Args:
        metric: the metric's name after `eval/`.
    """
    return UNDEFINED if math.isnan(value) else _number(value, metric) + ("%" if is_share(metric) else "")


def estimate_text(estimate: Estimate, metric: str = names.ACCURACY) -> str:
    """`63.2% [60.1 to 66.2]`; without the interval where it is undefined."""
    ends = f" [{_number(estimate.low, metric)} to {_number(estimate.high, metric)}]"
    return value_text(estimate.value, metric) + ("" if math.isnan(estimate.low) else ends)


def ends_text(estimate: Estimate, metric: str = names.ACCURACY) -> str:
    """The interval for a column of its own: `60.1% – 66.2%`."""
    low, high = (value_text(end, metric) for end in (estimate.low, estimate.high))
    return UNDEFINED if math.isnan(estimate.low) else f"{low} – {high}"


def change_text(change: float, metric: str = names.ACCURACY) -> str:
    """A difference, signed, of shares in percentage points: `+8.0`."""
    return UNDEFINED if math.isnan(change) else _number(change, metric, "+")


def change_ends_text(low: float, high: float, metric: str = names.ACCURACY) -> str:
    """The interval of a difference: `+5.0 to +11.0`."""
    return f"{change_text(low, metric)} to {change_text(high, metric)}"


def p_text(p_value: float) -> str:
    """Three significant figures."""
    return f"{p_value:.3g}"


def sized_text(change: float, metric: str = names.ACCURACY) -> str:
    """A difference with its unit: `+8.0 points`."""
    return change_text(change, metric) + (" points" if is_share(metric) else "")


def paired_text(found: Comparison, metric: str = names.ACCURACY) -> str:
    """`+8.0 points (95% interval +5.0 to +11.0), p = 2e-07`."""
    ends = change_ends_text(found.low, found.high, metric)
    return f"{sized_text(found.difference, metric)} (95% interval {ends}), p = {p_text(found.p_value)}"


def _number(value: float, metric: str, sign: str = "") -> str:
    shown = 100 * value if is_share(metric) else value
    fine = metric.partition("/")[0] == names.MEAN_REWARD or metric in {*names.PER_EPISODE} - {names.TURNS}
    digits = 3 if fine else 2 if _counts_answers(metric) else 1
    return f"{shown:{sign}.{digits}f}"


def _counts_answers(metric: str) -> bool:
    return metric.removeprefix(names.CHANCE).startswith((f"{names.DISTINCT}@", f"{names.DISTINCT_IF_SOLVED}@"))


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, whose cells may hold anything."""
    lines = [[" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in (head, *rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], ["---"] * len(head), *lines[1:]))
