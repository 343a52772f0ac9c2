"""A panel as an SVG inside a page, in the page's CSS colours, so that it follows the light and dark themes.

matplotlib draws it with placeholder colours, which are then replaced by CSS variables. The values shown on hover are
passed to the page as JSON.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter

from covey.report.charts.series import Panel, Point, Series, running_mean, window

WIDTH, HEIGHT = 400, 200
PLOT = (0.115, 0.13, 0.865, 0.83)
"""Left, bottom, width and height of the axes, as fractions of the figure."""
COLOURS = 8
"""Size of the page's palette; further series reuse it."""

_GRID, _TEXT, _INK = "#0f0f01", "#0f0f02", "#0f0f03"
_VARIABLES = {_GRID: "var(--grid)", _TEXT: "var(--faint)", _INK: "var(--ink)"} | {
    f"#0c0c0{n}": f"var(--c{n})" for n in range(COLOURS)
}
_SETTINGS = {"svg.fonttype": "none", "path.simplify_threshold": 0.3, "font.size": 10, "text.parse_math": False}
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}
_MOST_POINTS = 600
"""Longer series are thinned to this many points for the values on hover; the drawing has all."""


def colour(series: Series) -> str:
    """The CSS colour of a series."""
    return f"var(--c{series.colour % COLOURS})"


def draw(panel: Panel, first: int, last: int) -> str:
    """The panel as one `<svg>` element.

    Args:
        first: step at the left end.
        last: step at the right end.
    """
    with matplotlib.rc_context(_SETTINGS | {"svg.hashsalt": panel.key}):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), facecolor="none")
        axes = figure.add_axes(PLOT)
        _style(axes, panel)
        axes.set_xlim(*_x_limits(first, last))
        if panel.stacked:
            _stack(axes, panel)
        else:
            for number, one in reversed(list(enumerate(panel.series))):
                _line(axes, panel.key, number, one)
        _limit(axes, panel)
        picture = io.StringIO()
        figure.savefig(picture, format="svg", transparent=True, metadata=_NO_METADATA)
    return _for_page(picture.getvalue(), panel)


def values(panel: Panel) -> dict[str, Any]:
    """The values that the page shows on hover."""
    shown = []
    for one in panel.series:
        points = _thinned(one.points)
        entry: dict[str, Any] = {
            "label": one.label,
            "colour": colour(one),
            "steps": [step for step, _ in points],
            "values": [_short(value) for _, value in points],
        }
        if one.low and len(one.low) == len(one.high) == len(one.points):
            entry["low"] = [_short(value) for _, value in _thinned(one.low)]
            entry["high"] = [_short(value) for _, value in _thinned(one.high)]
        shown.append(entry)
    return {"key": panel.key, "unit": panel.unit, "series": shown}


def geometry(first: int, last: int) -> dict[str, Any]:
    """The x axis of every panel: its ends as fractions of the figure's width, and their steps."""
    low, high = _x_limits(first, last)
    return {"left": PLOT[0], "right": PLOT[0] + PLOT[2], "low": low, "high": high}


def _x_limits(first: int, last: int) -> tuple[float, float]:
    span = max(1, last - first)
    return first - 0.012 * span, last + 0.012 * span


def _style(axes: Axes, panel: Panel) -> None:
    axes.patch.set_alpha(0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_TEXT, length=0, pad=5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    if panel.unit == "percent":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif panel.unit == "bytes":
        axes.yaxis.set_major_formatter(EngFormatter("B", sep=""))
    else:
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else f"{value:.0e}")
        )


def _line(axes: Axes, key: str, number: int, one: Series) -> None:
    steps, numbers = [step for step, _ in one.points], [value for _, value in one.points]
    ink, name = f"#0c0c0{one.colour % COLOURS}", f"{key}-s{number}"
    if one.low and len(one.low) == len(one.high):
        band = axes.fill_between(
            [step for step, _ in one.low],
            [value for _, value in one.low],
            [value for _, value in one.high],
            color=ink,
            alpha=0.16,
            linewidth=0,
        )
        band.set_gid(f"{name}-band")
    width = window(len(numbers)) if one.smooth else 0
    if width:
        (pale,) = axes.plot(steps, numbers, color=ink, linewidth=0.8, alpha=0.3)
        pale.set_gid(f"{name}-pale")
        numbers = running_mean(numbers, width)
    marker = "o" if len(numbers) <= 25 else ""
    (bold,) = axes.plot(steps, numbers, color=ink, linewidth=1.9, marker=marker, markersize=3.4)
    bold.set_gid(name)


def _stack(axes: Axes, panel: Panel) -> None:
    steps = sorted({step for one in panel.series for step, _ in one.points})
    layers = []
    for one in panel.series:
        known = dict(one.points)
        layers.append([known.get(step, 0.0) for step in steps])
    width = window(len(steps))
    if width:
        layers = [running_mean(layer, width) for layer in layers]
    inks = [f"#0c0c0{one.colour % COLOURS}" for one in panel.series]
    for number, area in enumerate(axes.stackplot(steps, layers, colors=inks, alpha=0.82, linewidth=0)):
        area.set_gid(f"{panel.key}-s{number}")


def _limit(axes: Axes, panel: Panel) -> None:
    if panel.target is not None:
        axes.axhline(panel.target, color=_INK, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.7)
    low, high = axes.get_ylim()
    if panel.from_zero and low <= high:
        low = min(0.0, *(value for one in panel.series for _, value in one.points)) if panel.series else 0.0
        high = max(high, 1e-9)
    if panel.unit == "percent" and (high > 0.6 or panel.stacked):
        high = 1.0
    axes.set_ylim(low, high)


def _for_page(svg: str, panel: Panel) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(rf' id="(?!{re.escape(panel.key)}-s\d|[a-z]+[0-9a-f]{{8,}}")[^"]*"', "", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bd=")([^"]*)"', lambda found: found[1] + _rounded(found[2]) + '"', svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", svg)
    for placeholder, variable in _VARIABLES.items():
        svg = svg.replace(placeholder, variable)
    svg = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img" aria-hidden="true">', svg, count=1
    )
    return re.sub(r">\s+<", "><", svg).strip()


def _rounded(path: str) -> str:
    path = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", path)
    return re.sub(r"\s+", " ", path).strip()


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    if len(points) <= _MOST_POINTS:
        return points
    stride = -(-len(points) // _MOST_POINTS)
    kept = list(points[::stride])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _short(value: float) -> float:
    return float(f"{value:.5g}")
