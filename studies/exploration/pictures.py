"""The study's main picture: accuracy against coverage, over the checkpoints of every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

Panel = Mapping[str, Sequence[Sequence[tuple[float, float]]]]
"""(mean@8, coverage@8) of the start and of every checkpoint, by arm and run."""


def draw_frontier(rows: Sequence[Mapping[str, Panel]], file: Path) -> None:
    """A row of panels for each group of arms: the mean path of each arm from its start (hollow) to its last checkpoint
    (filled)."""
    rows = [row for row in rows if row]
    columns = max(map(len, rows))
    figure, axes = plt.subplots(
        len(rows), columns, figsize=(6 * columns, 5 * len(rows)), layout="constrained", squeeze=False
    )
    for own, row in zip(axes, rows, strict=True):
        for axis in own[len(row) :]:
            axis.set_axis_off()
        for axis, (title, arms) in zip(own, row.items(), strict=False):
            _draw(axis, title, arms)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _draw(axis: plt.Axes, title: str, arms: Panel) -> None:
    for colour, (arm, runs) in enumerate(arms.items()):
        mean = 100 * np.mean([list(path) for path in runs], axis=0)
        axis.plot(*mean.T, color=f"C{colour}", marker=".", markevery=slice(1, None), label=f"{arm} ({len(runs)})")
        axis.plot(*mean[0], color="black", marker="o", fillstyle="none")
        axis.plot(*mean[-1], color=f"C{colour}", marker="o")
    axis.set(title=title, xlabel="mean@8, % right", ylabel="coverage@8, % of the right answers")
    axis.grid(alpha=0.3)
    if arms:
        axis.legend(fontsize="small")
