"""The study: the starter's settings, one changed at a time, with the same seeds, problems and steps.

    python studies/tuning/sweep.py [train] [write] [--seeds 0 1 2 3] [--limit N] [--output DIR]

Trains what is not trained yet (each run is a separate `covey train`, seed by seed) and writes results.csv, results.md
and differences.png next to this file. After a stop, the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from tuning_tables import Result, draw, page, read_csv, write_csv

from covey.evaluation.estimators import mean
from covey.runlog import RunDirectory, names, read_metrics, series, write_atomically

HERE = Path(__file__).resolve().parent
RECIPE = HERE / "study.yaml"
STAGES = ("train", "write")
SEEDS = (0, 1, 2, 3)
STEPS = 10
"""Figures of training are means of this many last steps; truncation, of the first."""

ARMS: dict[str, list[str]] = {
    "default": [],
    "learning_rate=6.25e-5": ["training.learning_rate=6.25e-5"],
    "learning_rate=1e-3": ["training.learning_rate=1e-3"],
    "learning_rate=4e-3": ["training.learning_rate=4e-3"],
    "num_generations=4": ["training.num_generations=4"],
    "num_generations=16": ["training.num_generations=16"],
    "completions=64": ["training.gradient_accumulation_steps=2"],
    "beta=0": ["training.beta=0"],
    "beta=0.1": ["training.beta=0.1"],
    "temperature=0.7": ["training.temperature=0.7"],
    "temperature=1.2": ["training.temperature=1.2"],
    "loss_type=grpo": ["training.loss_type=grpo"],
    "loss_type=dr_grpo": ["training.loss_type=dr_grpo"],
    "max_completion_length=32": ["training.max_completion_length=32"],
}
"""The arms by name, and what each adds to the recipe. All but `completions=64` have 128 completions a step."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{', '.join(STAGES)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--limit", type=int, help="train at most this many runs in this invocation")
    parser.add_argument("--output", type=Path, default=Path("out/tuning_study"))
    arguments = parser.parse_args()
    unknown = set(arguments.stages) - set(STAGES)
    if unknown:
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    stages = arguments.stages or STAGES
    runs = {
        (arm, seed): RunDirectory(arguments.output / f"{arm.replace('=', '-')}-seed-{seed}")
        for seed in arguments.seeds
        for arm in ARMS
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
        where = [f"output_dir={run.root.parent}", f"run_name={run.root.name}"]
        command = ["train", str(RECIPE), *ARMS[arm], f"seed={seed}", *where]
        subprocess.run([sys.executable, "-m", "covey.cli.main", *command], check=True)


def write(runs: dict[tuple[str, int], RunDirectory]) -> None:
    """Write results.csv, and from it alone the tables and the plot."""
    if not runs:
        raise SystemExit("Nothing is trained yet: run the stage train first.")
    ordered = sorted(runs, key=lambda key: (list(ARMS).index(key[0]), key[1]))
    write_csv([result(arm, seed, runs[arm, seed]) for arm, seed in ordered], HERE / "results.csv")
    results = read_csv(HERE / "results.csv")  # rounded as in the file, so that the tables follow from it alone
    write_atomically(HERE / "results.md", page(results))
    draw(results, HERE / "differences.png")
    print(f"Written: results.csv, results.md and differences.png in {HERE}, from {len(results)} runs")


def result(arm: str, seed: int, run: RunDirectory) -> Result:
    """The figures of a finished run."""
    rows = read_metrics(run.metrics)

    def last(name: str) -> float:
        return mean([value for _, value in series(rows, name)[-STEPS:]])

    accuracies = [value for _, value in series(rows, names.EVAL_ACCURACY)]
    return Result(
        arm=arm,
        seed=seed,
        before=accuracies[0],
        accuracy=accuracies[-1],
        reward=last(names.REWARD),
        entropy=last(names.ENTROPY),
        kl=last(names.KL) if series(rows, names.KL) else None,
        truncated=mean([value for _, value in series(rows, names.CLIPPED_RATIO)[:STEPS]]),
        seconds=json.loads(run.summary.read_text(encoding="utf-8"))["training_seconds"],
    )


if __name__ == "__main__":
    main()
