"""What the pages' script draws, as JSON: panels, and the time and the tokens at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from covey.report.charts.panels import Sections
from covey.report.charts.series import Panel, Point, Series
from covey.runlog import names
from covey.runlog.metrics import Row

COLOURS = 8
"""Size of the page's palette; further series reuse it."""
MOST_POINTS = 4000
"""A longer series has means of this many equal parts at most."""


def chart_data(sections: Sections, runs: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Everything that `covey.charts` needs.

    Args:
        sections: headings with their panels.
        runs: the rows of each run, in the order of `Series.run`.
    """
    return {
        "axes": [axes(rows) for rows in runs],
        "sections": [[heading, [panel_data(panel) for panel in panels]] for heading, panels in sections],
    }


def panel_data(panel: Panel) -> dict[str, Any]:
    """A panel with its curves."""
    return {
        "key": panel.key,
        "title": panel.title,
        "note": panel.note,
        "unit": panel.unit,
        "stacked": panel.stacked,
        "from_zero": panel.from_zero,
        "target": panel.target,
        "series": [_series(one) for one in panel.series],
    }


def axes(rows: Sequence[Row]) -> dict[str, list[float]]:
    """The steps, and what a run had spent at each: seconds of its steps and evaluations, and tokens.

    An axis is empty if the run did not log it.
    """
    stride = max(1, -(-len(rows) // MOST_POINTS))
    kept = sorted({*range(0, len(rows), stride), *([len(rows) - 1] if rows else [])})
    times = (_number(row.get(names.STEP_TIME)) + _number(row.get(names.EVALUATION_TIME)) for row in rows)
    tokens = accumulate((_number(row.get(names.TOKENS)) for row in rows), max)
    measured = {"seconds": list(accumulate(times)), "tokens": list(tokens)}
    found = {name: [round(values[at], 2) for at in kept] if any(values) else [] for name, values in measured.items()}
    return {"step": [rows[at][names.STEP] for at in kept], **found}


def _number(value: Any) -> float:
    """A logged value; 0 for what is none."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _series(one: Series) -> dict[str, Any]:
    points = _thinned(one.points)
    shown: dict[str, Any] = {
        "label": one.label,
        "colour": f"var(--c{one.colour % COLOURS})",
        "run": one.run,
        "smooth": one.smooth,
        "steps": [step for step, _ in points],
        "values": [_short(value) for _, value in points],
    }
    if one.low and len(one.low) == len(one.high) == len(one.points):
        shown["low"] = [_short(value) for _, value in _thinned(one.low)]
        shown["high"] = [_short(value) for _, value in _thinned(one.high)]
    if len(points) < len(one.points):
        shown["every"] = _stride(one.points)
    return shown


def _stride(points: Sequence[Point]) -> int:
    return max(1, -(-len(points) // MOST_POINTS))


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    stride = _stride(points)
    if stride == 1:
        return points
    parts = (points[start : start + stride] for start in range(0, len(points), stride))
    return [(part[-1][0], fmean(value for _, value in part)) for part in parts]


def _short(value: float) -> float:
    return float(f"{value:.5g}")
