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
from matplotlib.figure import Figure

from covey.report.charts.drawing import Palette, draw_panel, x_limits
from covey.report.charts.series import Panel, Point, Series

WIDTH, HEIGHT = 400, 200
PLOT = (0.115, 0.13, 0.865, 0.83)
"""Left, bottom, width and height of the axes, as fractions of the figure."""
COLOURS = 8
"""Size of the page's palette; further series reuse it."""

_PALETTE = Palette([f"#0c0c0{n}" for n in range(COLOURS)], grid="#0f0f01", text="#0f0f02", ink="#0f0f03")
_VARIABLES = {_PALETTE.grid: "var(--grid)", _PALETTE.text: "var(--faint)", _PALETTE.ink: "var(--ink)"} | {
    line: f"var(--c{n})" for n, line in enumerate(_PALETTE.lines)
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
        draw_panel(figure.add_axes(PLOT), panel, first, last, _PALETTE)
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
    return {
        "key": panel.key,
        "title": panel.title,
        "note": panel.note,
        "unit": panel.unit,
        "stacked": panel.stacked,
        "from_zero": panel.from_zero,
        "target": panel.target,
        "series": shown,
    }


def geometry(first: int, last: int) -> dict[str, Any]:
    """The x axis of every panel: its ends as fractions of the figure's width, and their steps."""
    low, high = x_limits(first, last)
    return {"left": PLOT[0], "right": PLOT[0] + PLOT[2], "low": low, "high": high}


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
