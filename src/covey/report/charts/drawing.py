"""Drawing a panel on matplotlib's axes, the same for images and for pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter

from covey.report.charts.series import Panel, Series, drawn, running_mean, window


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of a drawing."""

    lines: Sequence[str]
    """Indexed by `Series.colour`; further series reuse them."""
    grid: str
    text: str
    ink: str

    def of(self, one: Series) -> str:
        return self.lines[one.colour % len(self.lines)]


def draw_panel(axes: Axes, panel: Panel, first: int, last: int, palette: Palette) -> None:
    """Draw a panel's curves. Its parts get ids from the panel's key: `<key>-s0`, `<key>-s0-pale`, `<key>-s0-band`.

    Args:
        first: step at the left end.
        last: step at the right end.
    """
    _style(axes, panel, palette)
    axes.set_xlim(*x_limits(first, last))
    if panel.stacked:
        _stack(axes, panel, palette)
    else:
        for number, one in reversed(list(enumerate(panel.series))):  # the first line lies on top
            _line(axes, f"{panel.key}-s{number}", one, panel, palette.of(one))
    _limit(axes, panel, palette)


def x_limits(first: int, last: int) -> tuple[float, float]:
    """The ends of the axis of steps."""
    span = max(1, last - first)
    return first - 0.012 * span, last + 0.012 * span


def _style(axes: Axes, panel: Panel, palette: Palette) -> None:
    axes.patch.set_alpha(0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(palette.grid)
    axes.grid(axis="y", color=palette.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=palette.text, length=0, pad=5)
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


def _line(axes: Axes, name: str, one: Series, panel: Panel, ink: str) -> None:
    steps, numbers = [step for step, _ in one.points], [value for _, value in one.points]
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
    bold = drawn(one, panel)
    if bold != numbers:
        (pale,) = axes.plot(steps, numbers, color=ink, linewidth=0.8, alpha=0.3)
        pale.set_gid(f"{name}-pale")
    marker = "o" if len(numbers) <= 25 else ""
    (line,) = axes.plot(steps, bold, color=ink, linewidth=1.9, marker=marker, markersize=3.4)
    line.set_gid(name)


def _stack(axes: Axes, panel: Panel, palette: Palette) -> None:
    steps = sorted({step for one in panel.series for step, _ in one.points})
    layers = []
    for one in panel.series:
        known = dict(one.points)
        layers.append([known.get(step, 0.0) for step in steps])
    width = window(len(steps))
    if width:
        layers = [running_mean(layer, width) for layer in layers]
    inks = [palette.of(one) for one in panel.series]
    for number, area in enumerate(axes.stackplot(steps, layers, colors=inks, alpha=0.82, linewidth=0)):
        area.set_gid(f"{panel.key}-s{number}")


def _limit(axes: Axes, panel: Panel, palette: Palette) -> None:
    if panel.target is not None:
        axes.axhline(panel.target, color=palette.ink, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.7)
    low, high = axes.get_ylim()
    if panel.from_zero and low <= high:
        low = min(0.0, *(value for one in panel.series for _, value in one.points)) if panel.series else 0.0
        high = max(high, 1e-9)
    if panel.unit == "percent" and (high > 0.6 or panel.stacked):
        high = 1.0
    axes.set_ylim(low, high)
