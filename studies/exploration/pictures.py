"""The study's main picture: accuracy against coverage, over the checkpoints of every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

Paths = Mapping[str, Mapping[tuple[int, int], Sequence[tuple[float, float]]]]
"""(mean@8, coverage@8) of the start and of every checkpoint, by arm and pair."""


def draw_frontier(tasks: Mapping[str, Paths], file: Path) -> None:
    """One panel per task: the mean path of each arm from its start (hollow) to its last checkpoint (filled)."""
    figure, axes = plt.subplots(1, len(tasks), figsize=(6 * len(tasks), 5), layout="constrained", squeeze=False)
    for axis, (task, arms) in zip(axes[0], tasks.items(), strict=True):
        for colour, (arm, pairs) in enumerate(arms.items()):
            mean = 100 * np.mean([list(path) for path in pairs.values()], axis=0)
            axis.plot(*mean.T, color=f"C{colour}", marker=".", label=f"{arm} ({len(pairs)})")
            axis.plot(*mean[0], color=f"C{colour}", marker="o", fillstyle="none")
            axis.plot(*mean[-1], color=f"C{colour}", marker="o")
        axis.set(title=task, xlabel="mean@8, % right", ylabel="coverage@8, % of the right answers")
        axis.grid(alpha=0.3)
        if arms:
            axis.legend(fontsize="small")
    figure.savefig(file, dpi=110)
    plt.close(figure)
