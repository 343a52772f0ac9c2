"""`curves.png`: held-out accuracy and entropy in training, and the final figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from tables import START, Result, by_seed, over_seeds

from covey.evaluation.estimators import t_estimate

Series = Mapping[int, float]
"""Values by training step."""

INK, GREY, PALE = "#1f2933", "#6b7785", "#e3e8ed"
ROSE = "#b8336a"
SHADES = {
    "mle": ("#f2b27a", "#d9730d", "#8f4600"),
    "listwise": ("#8fd3cf", "#119c94", "#045550"),
}
"""Colours of a fit, from the smallest τ to the largest."""
SMOOTH = 5
"""Training metrics are plotted as means over this many steps."""


def draw(
    results: Sequence[Result],
    accuracy: Mapping[str, Sequence[Series]],
    entropy: Mapping[str, Sequence[Series]],
    target: Path,
) -> None:
    """Draw the picture.

    Args:
        results: how every run ended.
        accuracy: by arm, held-out accuracy over the steps of every seed.
        entropy: the same for the policy's entropy per token.
        target: the picture's file.
    """
    figure = Figure(figsize=(12, 9), dpi=100, facecolor="white", layout="constrained")
    panels = figure.subplots(2, 2).flatten()
    colours = _colours(list(accuracy))
    for axes, title, curves in (
        (panels[0], "Held-out accuracy", accuracy),
        (panels[1], f"Policy entropy, nats per token (mean of {SMOOTH} steps)", entropy),
    ):
        for arm, runs in curves.items():
            smoothed = runs if axes is panels[0] else [smooth(run) for run in runs]
            _band(axes, arm, smoothed, colours[arm])
        _dress(axes, title, "training step")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    _ends(panels[2], results, colours, "pass_at_8", "pass@8 against accuracy, at the end")
    panels[2].yaxis.set_major_formatter(PercentFormatter(1.0))
    _ends(panels[3], results, colours, "distinct", "Distinct right answers against accuracy, at the end")
    panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    remark = "bands and crosses: 95% t intervals over seeds; dots: single runs"
    figure.supxlabel(remark, fontsize=9, color=GREY, x=0.99, ha="right")
    figure.savefig(target)


def smooth(run: Series) -> dict[int, float]:
    """The mean of every `SMOOTH` steps in a row, at the last of them."""
    steps = sorted(run)
    return {
        steps[end - 1]: sum(run[step] for step in steps[end - SMOOTH : end]) / SMOOTH
        for end in range(SMOOTH, len(steps) + 1, SMOOTH)
    }


def _colours(arms: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for arm in arms:
        fit = arm.partition(" ")[0]
        shades = SHADES.get(fit, (ROSE,))
        found[arm] = shades[min(sum(one.partition(" ")[0] == fit for one in found), len(shades) - 1)]
    return found


def _band(axes: Axes, arm: str, runs: Sequence[Series], colour: str) -> None:
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    points = [t_estimate([run[step] for run in runs]) for step in steps]
    axes.plot(steps, [one.value for one in points], color=colour, label=arm, linewidth=2)
    axes.fill_between(steps, [one.low for one in points], [one.high for one in points], color=colour, alpha=0.10, lw=0)


def _ends(axes: Axes, results: Sequence[Result], colours: Mapping[str, str], measure: str, title: str) -> None:
    for arm, colour in colours.items():
        accuracies, others = by_seed(results, arm, "accuracy"), by_seed(results, arm, measure)
        axes.scatter([accuracies[s] for s in accuracies], [others[s] for s in accuracies], color=colour, s=9, alpha=0.5)
        x, y = over_seeds(results, arm, "accuracy"), over_seeds(results, arm, measure)
        across, along = [[x.value - x.low], [x.high - x.value]], [[y.value - y.low], [y.high - y.value]]
        axes.errorbar(x.value, y.value, xerr=across, yerr=along, fmt="o", color=colour, markersize=6, lw=1.2)
    for one in results:
        if one.arm == START:
            place = (one.accuracy, getattr(one, measure))
            axes.scatter(*place, marker="*", s=120, color=GREY)
            axes.annotate(START, place, xytext=(-36, -3), textcoords="offset points", color=GREY)
    _dress(axes, title, "accuracy")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))


def _dress(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
    axes.set_xlabel(below, color=GREY)
    axes.grid(color=PALE)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(PALE)
