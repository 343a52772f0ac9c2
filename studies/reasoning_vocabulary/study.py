"""The study: the starter with and without one reasoning token for each of its tokens, same seeds and steps.

    python studies/reasoning_vocabulary/study.py [train] [write] [--seeds 0 1 2 3 4] [--limit N] [--output DIR]

Trains what is not trained yet (each run is a separate `covey train`) and writes results.csv, results.md and curves.png
next to this file. After a stop, the same command resumes.
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from covey.evaluation.estimators import t_estimate
from covey.runlog import RunDirectory, names, read_metrics, series, write_atomically

HERE = Path(__file__).resolve().parent
RECIPE = HERE / "study.yaml"
STAGES = ("train", "write")
SEEDS = (0, 1, 2, 3, 4)

ARMS: dict[str, list[str]] = {
    "baseline": [],
    "copy": ["model.reasoning_vocab_size=full", "model.reasoning_start=copy"],
    "same_text": ["model.reasoning_vocab_size=full", "model.reasoning_start=same_text"],
}
"""The arms by name, and what each adds to the recipe."""

MEASURES = {
    "accuracy before": (names.EVAL_ACCURACY, 0),
    "accuracy after": (names.EVAL_ACCURACY, -1),
    "completion length after": (names.EVAL_LENGTH, -1),
    "reasoning share, first step": (names.REASONING_SHARE, 0),
    "reasoning share, last step": (names.REASONING_SHARE, -1),
    "thinking share, last step": (names.THINKING_SHARE, -1),
}
"""The reported figures of a run: a metric, and whether of its first or its last row."""

Curves = dict[str, list[list[tuple[int, float]]]]
"""By arm, the points of each seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{', '.join(STAGES)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--limit", type=int, help="train at most this many runs in this invocation")
    parser.add_argument("--output", type=Path, default=Path("out/reasoning_vocabulary_study"))
    arguments = parser.parse_args()
    unknown = set(arguments.stages) - set(STAGES)
    if unknown:
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    stages = arguments.stages or STAGES
    runs = {
        (arm, seed): RunDirectory(arguments.output / f"{arm}-seed-{seed}") for seed in arguments.seeds for arm in ARMS
    }
    if "train" in stages:
        train(runs, arguments.limit)
    if "write" in stages:
        write({key: run for key, run in runs.items() if run.summary.exists()})


def train(runs: dict[tuple[str, int], RunDirectory], limit: int | None) -> None:
    """Train the unfinished runs, seed by seed; at most `limit`."""
    waiting = [(arm, seed, run) for (arm, seed), run in runs.items() if not run.summary.exists()]
    for number, (arm, seed, run) in enumerate(waiting[:limit], 1):
        print(f"{number} of {len(waiting)}: {arm}, seed {seed}", flush=True)
        where = [f"output_dir={run.root.parent}", f"run_name={run.root.name}", "overwrite=true"]
        command = ["train", str(RECIPE), *ARMS[arm], f"seed={seed}", *where]
        subprocess.run([sys.executable, "-m", "covey.cli.main", *command], check=True)


def write(runs: dict[tuple[str, int], RunDirectory]) -> None:
    """Write the table, its summary and the curves."""
    rows = {key: read_metrics(run.metrics) for key, run in runs.items()}
    found: dict[tuple[str, int], dict[str, float | None]] = {}
    for key, metrics in rows.items():
        found[key] = {}
        for measure, (name, place) in MEASURES.items():
            points = series(metrics, name)
            found[key][measure] = points[place][1] if points else None
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["arm", "seed", *MEASURES])
    table.writerows([arm, seed, *values.values()] for (arm, seed), values in sorted(found.items()))
    write_atomically(HERE / "results.csv", text.getvalue())
    write_atomically(HERE / "results.md", summary(found))
    curves = {
        title: {
            arm: [series(rows[key], name) for key in rows if key[0] == arm and series(rows[key], name)] for arm in ARMS
        }
        for title, name in (
            ("Held-out accuracy", names.EVAL_ACCURACY),
            ("Reasoning tokens, share of thinking", names.REASONING_SHARE),
            ("KL from the start, nats per token", names.KL),
        )
    }
    draw(curves, HERE / "curves.png")


def summary(found: dict[tuple[str, int], dict[str, float | None]]) -> str:
    """Means over seeds with 95% intervals (Student's t over seeds), and differences to the baseline by seed."""
    lines = ["| arm | seeds | " + " | ".join(MEASURES) + " |", "|---|---|" + "---|" * len(MEASURES)]
    for arm in ARMS:
        values = [row for (name, _), row in found.items() if name == arm]
        cells = [interval([v for row in values if (v := row[measure]) is not None]) for measure in MEASURES]
        lines.append(f"| {arm} | {len(values)} | " + " | ".join(cells) + " |")
    lines += ["", "Accuracy after training, less that of the baseline with the same seed:", "", "| arm | difference |"]
    lines += ["|---|---|"]
    for arm in list(ARMS)[1:]:
        pairs = [
            float(after) - float(before)
            for (name, seed), row in found.items()
            if name == arm
            and (after := row["accuracy after"]) is not None
            and (before := found.get(("baseline", seed), {}).get("accuracy after")) is not None
        ]
        lines.append(f"| {arm} | {interval(pairs)} |")
    return "\n".join(lines) + "\n"


def interval(values: Sequence[float]) -> str:
    """`mean [low, high]` by Student's t; the mean alone for a single value."""
    if not values:
        return "–"
    middle = float(np.mean(values))
    if len(values) < 2:
        return f"{middle:.3f}"
    found = t_estimate(values)
    return f"{middle:.3f} [{found.low:.3f}, {found.high:.3f}]"


def draw(curves: dict[str, Curves], target: Path) -> None:
    """One plot per figure: the mean of each arm, and its seeds behind it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(5 * len(curves), 3.6), layout="constrained")
    for axis, (title, by_arm) in zip(axes, curves.items(), strict=True):
        for colour, (arm, seeds) in enumerate(by_arm.items()):
            for points in seeds:
                axis.plot(*zip(*points, strict=True), color=f"C{colour}", alpha=0.25, linewidth=0.8)
            if seeds:
                steps = sorted(set.intersection(*({step for step, _ in points} for points in seeds)))
                mean = [float(np.mean([dict(points)[step] for points in seeds])) for step in steps]
                axis.plot(steps, mean, color=f"C{colour}", label=arm)
        axis.set_title(title)
        axis.set_xlabel("step")
    axes[0].legend()
    figure.savefig(target, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main()
