"""The curves of a run as one image: four of the report's panels.

Reads only `metrics.jsonl`, and `config.yaml` for the title, so it works for any run, running or ended.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from covey.errors import RunDirectoryError
from covey.evaluation.figures import is_share
from covey.report.load import title_of
from covey.report.panels import Panel, Series, drawn, format_value, make_panels, smoothing
from covey.runlog import RunDirectory, names, read_metrics, write_atomically
from covey.runlog.metrics import Row

_INK, _GREY, _GRID = "#1f2933", "#6b7785", "#e3e8ed"
_LINES = ("#0b7a75", "#d9730d", "#6d4fc2", "#2f6fb7", "#b8336a", "#8793a0", "#8a6d1d", "#3d8b3d")
"""Those of the pages in the light theme."""


def draw_curves(run_dir: Path, target: Path | None = None) -> Path:
    """Draw a run's held-out accuracy (without a grader: reward), reward, completion length, and KL, else entropy.

    Args:
        run_dir: the run directory.
        target: the image, `.png` or `.svg`; by default `curves.png` in the run directory.

    Returns:
        The path of the image.

    Raises:
        RunDirectoryError: the run has no metrics yet, or the image cannot be written.
    """
    run = RunDirectory(run_dir)
    target = target or run.curves
    rows = read_metrics(run.metrics)
    if not rows:
        raise RunDirectoryError(f"{run.metrics} holds no rows yet. Draw the curves once the first step is done.")
    text = run.config.read_text(encoding="utf-8") if run.config.exists() else ""
    config = yaml.safe_load(text) or {}
    layout = ConstrainedLayoutEngine(h_pad=0.14, w_pad=0.18, hspace=0.03)
    figure = Figure(figsize=(12, 8), dpi=100, facecolor="white", layout=layout)
    title = title_of(config) or run.root.absolute().name
    size = min(17.0, 17 * 54 / len(title))  # a long title must not overlap the remarks
    figure.suptitle(title, x=0.022, ha="left", fontsize=size, fontweight="bold", color=_INK)
    panels = main_panels(rows, config)
    places = list(figure.subplots(2, 2, sharex=True).flat)
    for axes, panel in zip(places, panels, strict=True):
        _draw(axes, panel, int(rows[0][names.STEP]), int(rows[-1][names.STEP]))
    for axes in places[2:]:
        axes.set_xlabel("training step", color=_GREY, fontsize=11)
    remarks = ["band: 95% interval"] if any(one.low for one in panels[0].series) else []
    if width := max(map(smoothing, panels)):
        remarks.append(f"pale: every step, bold: mean of {width} steps")
    figure.text(0.982, 0.972, "   ·   ".join(remarks), ha="right", va="top", fontsize=10, color=_GREY)
    picture = io.BytesIO()
    figure.savefig(picture, format=target.suffix.removeprefix(".") or "png")
    with run.guard(target.name):
        write_atomically(target, picture.getvalue())
    return target


def main_panels(rows: Sequence[Row], config: Mapping[str, Any]) -> list[Panel]:
    """The report's panels that the image shows; one without curves was not logged."""
    panels = {panel.key: panel for panel in make_panels(rows, config)}
    best = names.best_of(rows, (config.get("evaluation") or {}).get("best_by"))
    by_reward = best is not None and not is_share(best)
    by_reward = by_reward or bool(panels["held_out_reward"].series and not panels["accuracy"].series)
    reward, parts = panels["reward"], panels.get("components")
    if parts is not None:  # the image has one panel for both
        lines = [replace(one, colour=number) for number, one in enumerate(parts.series, start=1)]
        reward = replace(reward, series=[reward.series[0], *lines])
    return [
        panels["held_out_reward" if by_reward else "accuracy"],
        reward,
        panels["length"],
        panels["entropy" if not panels["kl"].series and panels["entropy"].series else "kl"],
    ]


def _draw(axes: Axes, panel: Panel, first: int, last: int) -> None:
    axes.set_title(panel.title, loc="left", fontsize=13, color=_INK, pad=11)
    axes.tick_params(labelsize=10, labelbottom=True)
    if not panel.series:
        missing = "no evaluation in this run" if panel.held_out else "not logged"
        axes.text(0.5, 0.5, missing, transform=axes.transAxes, ha="center", va="center", color=_GREY, fontsize=12)
        axes.set_yticks([])
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        return
    _style(axes, panel, first, last)
    for one in reversed(panel.series):  # the first line lies on top
        _line(axes, one, panel)
    _limit(axes, panel)
    bottom, top = axes.get_ylim()
    named = len(panel.series) > 1
    gap = 0.13 if named else 0.06  # height of a label, as a fraction of the panel's height
    ends = [drawn(one, panel)[-1] for one in panel.series]
    heights = spread([(end - bottom) / (top - bottom) for end in ends], gap)
    for one, end, height in zip(panel.series, ends, heights, strict=True):
        value = format_value(end, panel.unit)
        axes.annotate(
            f"{one.label}\n{value}" if named else value,
            (1.0, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=_colour(one),
            fontsize=10.5,
            fontweight="bold",
            linespacing=1.15,
            annotation_clip=False,
        )


def _colour(one: Series) -> str:
    return _LINES[one.colour % len(_LINES)]


def _style(axes: Axes, panel: Panel, first: int, last: int) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_GREY, length=0, pad=5)
    margin = 0.012 * max(1, last - first)
    axes.set_xlim(first - margin, last + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    if panel.unit == "percent":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else f"{value:.0e}")
        )


def _line(axes: Axes, one: Series, panel: Panel) -> None:
    ink, steps, numbers = _colour(one), [step for step, _ in one.points], [value for _, value in one.points]
    if one.low and len(one.low) == len(one.high):
        low, high = ([value for _, value in end] for end in (one.low, one.high))
        axes.fill_between([step for step, _ in one.low], low, high, color=ink, alpha=0.16, linewidth=0)
    bold = drawn(one, panel)
    if bold != numbers:
        axes.plot(steps, numbers, color=ink, linewidth=0.8, alpha=0.3)
    axes.plot(steps, bold, color=ink, linewidth=1.9, marker="o" if len(numbers) <= 25 else "", markersize=3.4)


def _limit(axes: Axes, panel: Panel) -> None:
    if panel.target is not None:
        axes.axhline(panel.target, color=_INK, linewidth=1.1, linestyle=(0, (4, 3)), alpha=0.7)
    low, high = axes.get_ylim()
    if panel.from_zero and low <= high:
        low = min(0.0, *(value for one in panel.series for _, value in one.points)) if panel.series else 0.0
        high = max(high, 1e-9)
    if panel.unit == "percent" and high > 0.6:
        high = 1.0
    axes.set_ylim(low, high)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights apart to a distance of at least `gap`, as little as possible and in the same order.

    Overlapping heights are merged into a block centred on their mean, repeatedly.
    """
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    blocks: list[list[int]] = []
    for at in order:
        blocks.append([at])
        while len(blocks) > 1 and _span(blocks[-2], heights, gap)[1] + gap > _span(blocks[-1], heights, gap)[0]:
            upper = blocks.pop()
            blocks[-1] += upper
    placed = list(heights)
    for block in blocks:
        low = _span(block, heights, gap)[0]
        for place, at in enumerate(block):
            placed[at] = low + place * gap
    return placed


def _span(block: Sequence[int], heights: Sequence[float], gap: float) -> tuple[float, float]:
    centre, half = fmean(heights[at] for at in block), gap * (len(block) - 1) / 2
    return centre - half, centre + half
