"""Curves and panels of curves, and smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

Point = tuple[int, float]
"""A training step and a value."""

SMOOTH_FROM = 30
"""Lines with at least this many points are drawn as a running mean over a pale line of every step."""


@dataclass(frozen=True, slots=True)
class Series:
    """One named curve; `low` and `high` bound its interval."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    """Index in the palette."""
    low: Sequence[Point] = ()
    high: Sequence[Point] = ()
    smooth: bool = True
    run: int = 0
    """Whose curve it is, where several runs are drawn."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: curves over the training steps on one pair of axes."""

    key: str
    title: str
    series: Sequence[Series]
    unit: str = "number"
    """Format of the values: `number`, `percent`, `seconds` or `bytes`."""
    note: str = ""
    """One sentence on how to read it."""
    stacked: bool = False
    """Whether the series are parts of a whole, drawn stacked."""
    from_zero: bool = True
    held_out: bool = False
    """Whether its values come from evaluations."""
    target: float | None = None
    """A target value, drawn as a dashed line."""


def window(count: int) -> int:
    """Width (odd) of the running mean for a line of `count` points; 0 for a short line, which is not smoothed."""
    return 0 if count < SMOOTH_FROM else max(5, count // 25 * 2 + 1)


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """The centred mean over `width` (odd) values; at the ends, over those that exist."""
    half = width // 2
    return [fmean(values[max(0, at - half) : at + half + 1]) for at in range(len(values))]


def drawn(one: Series, panel: Panel) -> list[float]:
    """The values of a curve's bold line: the running mean of a long one."""
    values = [value for _, value in one.points]
    width = window(len(values)) if one.smooth or panel.stacked else 0
    return running_mean(values, width) if width else values


def smoothing(panel: Panel) -> int:
    """The width in steps of the running means of a panel; 0 if it draws the values as they are."""
    return max((window(len(one.points)) for one in panel.series if one.smooth or panel.stacked), default=0)


def format_value(value: float, unit: str) -> str:
    """A value as text."""
    if unit == "percent":
        return f"{100 * value:.1f}%"
    if unit == "bytes":
        return f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.0f} MB"
    if unit == "seconds":
        return f"{value:.3g} s"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
