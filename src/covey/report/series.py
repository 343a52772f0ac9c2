"""What a curve and a panel of curves are, and the small sums that panels and findings share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

Point = tuple[int, float]
"""A training step and a value."""

SMOOTH_FROM = 30
"""From how many points on a line is drawn as its running mean, over a pale one of every step."""


@dataclass(frozen=True, slots=True)
class Series:
    """One named curve; `low` and `high` bound its interval."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    """Place in the palette."""
    low: Sequence[Point] = ()
    high: Sequence[Point] = ()
    smooth: bool = True
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A few curves over the training steps, on one pair of axes."""

    key: str
    title: str
    series: Sequence[Series]
    unit: str = "number"
    """How values are written: `number`, `percent`, `seconds` or `bytes`."""
    note: str = ""
    """One sentence on how to read it."""
    stacked: bool = False
    """Whether the series are parts of a whole, drawn on top of one another."""
    from_zero: bool = True
    target: float | None = None
    """A value to aim at, drawn as a dashed line."""


def window(count: int) -> int:
    """Over how many points (odd) a line of `count` points is averaged; 0 when it is short enough as it is."""
    return 0 if count < SMOOTH_FROM else max(5, count // 25 * 2 + 1)


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """The mean of the `width` (odd) values around every value; at the two ends, of as many of them as there are."""
    reach = width // 2
    return [fmean(values[max(0, at - reach) : at + reach + 1]) for at in range(len(values))]


def written(value: float, unit: str) -> str:
    """A value as people read it."""
    if unit == "percent":
        return f"{100 * value:.1f}%"
    if unit == "bytes":
        return f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.0f} MB"
    if unit == "seconds":
        return f"{value:.3g} s"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
