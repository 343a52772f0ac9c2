"""The curves of a run as one image with four panels.

Reads only `metrics.jsonl`, and `config.yaml` for the title, so it works for any run, running or ended.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, PercentFormatter

from covey.errors import RunDirectoryError
from covey.report.charts.series import Point, running_mean
from covey.report.charts.series import window as window_of
from covey.report.load import title_of
from covey.runlog import RunDirectory, names, read_metrics, series, write_atomically
from covey.runlog.metrics import Row

INK, GREY, PALE = "#1f2933", "#6b7785", "#e3e8ed"
TEAL, ORANGE, VIOLET, BLUE, ROSE = "#0b7a75", "#d9730d", "#6d4fc2", "#2f6fb7", "#b8336a"
LINES = (ORANGE, BLUE, ROSE, VIOLET, GREY)
"""Colours of a panel's second and further lines."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One named curve of a panel; `low` and `high` bound its interval."""

    label: str
    points: Sequence[Point]
    colour: str
    low: Sequence[Point] = ()
    high: Sequence[Point] = ()
    smooth: bool = True
    width: float = 2.2


def draw_curves(run_dir: Path, target: Path | None = None) -> Path:
    """Draw a run's held-out accuracy, reward, completion length, and KL (or entropy, without a KL term).

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
    layout = ConstrainedLayoutEngine(h_pad=0.14, w_pad=0.18, hspace=0.03)
    figure = Figure(figsize=(12, 8), dpi=100, facecolor="white", layout=layout)
    title = _title(run)
    size = min(17.0, 17 * 54 / len(title))  # a long title must not overlap the remarks
    figure.suptitle(title, x=0.022, ha="left", fontsize=size, fontweight="bold", color=INK)
    panels = figure.subplots(2, 2, sharex=True).flat
    smoothed = 0
    for axes, draw in zip(panels, (_accuracy, _reward, _length, _divergence), strict=True):
        _style(axes, rows)
        smoothed = max(smoothed, draw(axes, rows))
    for axes in panels[2:]:
        axes.set_xlabel("training step", color=GREY, fontsize=11)
    remarks = ["band: 95% interval"] if series(rows, names.EVAL_ACCURACY_LOW) else []
    if smoothed:
        remarks.append(f"pale: every step, bold: mean of {smoothed} steps")
    figure.text(0.982, 0.972, "   ·   ".join(remarks), ha="right", va="top", fontsize=10, color=GREY)
    picture = io.BytesIO()
    figure.savefig(picture, format=target.suffix.removeprefix(".") or "png")
    with run.guard(target.name):
        write_atomically(target, picture.getvalue())
    return target


def _title(run: RunDirectory) -> str:
    """Model and data from the config; without a config, the directory's name."""
    text = run.config.read_text(encoding="utf-8") if run.config.exists() else ""
    return title_of(yaml.safe_load(text) or {}) or run.root.absolute().name


def _accuracy(axes: Axes, rows: list[Row]) -> int:
    lines = []
    for name, colour in zip(names.held_out_sets(rows), (TEAL, *LINES), strict=False):
        lines.append(
            _Line(
                "held-out" if name == names.TEST_SET else f"{name}er set" if name == names.HARD_SET else name,
                series(rows, names.eval_name(name, names.ACCURACY)),
                colour,
                low=series(rows, names.eval_name(name, names.ACCURACY_LOW)) if name == names.TEST_SET else (),
                high=series(rows, names.eval_name(name, names.ACCURACY_HIGH)) if name == names.TEST_SET else (),
                smooth=False,
            )
        )
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(0, 1)
    return _draw(axes, "Held-out accuracy", lines, "{:.1%}", missing="no evaluation in this run")


def _reward(axes: Axes, rows: list[Row]) -> int:
    found = dict.fromkeys(reward for row in rows for name in row if (reward := names.rewarded(name)))
    lines = [_Line("reward", series(rows, names.REWARD), TEAL)]
    if len(found) > 1:
        for reward, colour in zip(found, LINES, strict=False):
            lines.append(_Line(reward.replace("_", " "), series(rows, names.reward_mean(reward)), colour, width=1.5))
    return _draw(axes, "Reward", lines, "{:.2f}")


def _length(axes: Axes, rows: list[Row]) -> int:
    lines = [_Line("mean", series(rows, names.COMPLETION_LENGTH), VIOLET)]
    return _draw(axes, "Completion length (tokens)", lines, "{:.0f}", from_zero=True)


def _divergence(axes: Axes, rows: list[Row]) -> int:
    divergence, entropy = series(rows, names.KL), series(rows, names.ENTROPY)
    if divergence or not entropy:
        title, line = "KL to the reference model", _Line("KL", divergence, BLUE)
    else:
        title, line = "Entropy per token", _Line("entropy", entropy, BLUE)
    return _draw(axes, title, [line], "{:.3g}", from_zero=True)


def _style(axes: Axes, rows: list[Row]) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.grid(axis="y", color=PALE, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelsize=10, length=0, labelbottom=True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    first, last = rows[0][names.STEP], rows[-1][names.STEP]
    axes.set_xlim(first - 0.01 * (last - first) - 0.1, last + 0.02 * (last - first) + 0.1)


def _draw(
    axes: Axes, title: str, lines: Sequence[_Line], number: str, *, from_zero: bool = False, missing: str = "not logged"
) -> int:
    """Draw a panel's lines, each labelled with its last value at its right end.

    Returns:
        The width in steps of the running mean; 0 if the lines are not smoothed.
    """
    axes.set_title(title, loc="left", fontsize=13, color=INK, pad=11)
    lines = [line for line in lines if line.points]
    if not lines:
        axes.text(0.5, 0.5, missing, transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=12)
        axes.set_yticks([])
        return 0
    window = window_of(max(len(line.points) for line in lines if line.smooth)) if lines[0].smooth else 0
    ends = [_draw_line(axes, line, window) for line in reversed(lines)][::-1]  # the first line lies on top
    if axes.get_autoscaley_on():
        axes.margins(y=0.08)
    if from_zero:
        axes.set_ylim(bottom=0)
    _label(axes, lines, ends, number)
    return window


def _draw_line(axes: Axes, line: _Line, window: int) -> float:
    """Draw one line with its band; returns the value at its right end."""
    steps, values = [step for step, _ in line.points], [value for _, value in line.points]
    if line.low and len(line.low) == len(line.high):
        low, high = [value for _, value in line.low], [value for _, value in line.high]
        axes.fill_between([step for step, _ in line.low], low, high, color=line.colour, alpha=0.14, linewidth=0)
    if window:
        axes.plot(steps, values, color=line.colour, linewidth=0.9, alpha=0.28)
        values = running_mean(values, window)
    marker = "o" if len(values) <= 20 else ""
    axes.plot(steps, values, color=line.colour, linewidth=line.width, marker=marker, markersize=4.5)
    return values[-1]


def _label(axes: Axes, lines: Sequence[_Line], ends: Sequence[float], number: str) -> None:
    """Label the lines at their right ends, without overlaps."""
    bottom, top = axes.get_ylim()
    named = len(lines) > 1
    gap = 0.13 if named else 0.06  # height of a label, as a fraction of the panel's height
    heights = spread([(end - bottom) / (top - bottom) for end in ends], gap)
    for line, end, height in zip(lines, ends, heights, strict=True):
        axes.annotate(
            f"{line.label}\n{number.format(end)}" if named else number.format(end),
            (1.0, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=line.colour,
            fontsize=10.5,
            fontweight="bold",
            linespacing=1.15,
            annotation_clip=False,
        )


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
