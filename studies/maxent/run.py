"""The study: GRPO against MaxEnt-GRPO on countdown, every arm with the same seeds, steps and completions.

    python studies/maxent/run.py [train] [measure] [write] [--seeds 0 1 2 3 4] [--limit N] [--output out/maxent_study]

Makes the starting point if it is missing, trains what is not trained yet (each run is a separate `covey train`),
measures what is not measured yet, and writes results.csv, results.md and curves.png next to this file. After a stop,
the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from measure import Figures, measure
from plots import draw
from tables import START, Result, page, read_csv, write_csv

from covey.evaluation.estimators import mean
from covey.runlog import RunDirectory, names, read_metrics, series, write_atomically

HERE = Path(__file__).resolve().parent
RECIPE = HERE / "study.yaml"
STAGES = ("train", "measure", "write")
SEEDS = (0, 1, 2, 3, 4)
TAUS = (0.1, 0.3, 1.0)
LAST_STEPS = 10
"""The entropy of a run is the mean of this many last steps."""

ARMS: dict[str, list[str]] = {"grpo": ["objective=grpo", "training.loss_type=grpo"]} | {
    f"{fit} τ={tau:g}": ["objective=maxent", f"objective.maxent_fit={fit}", f"objective.maxent_tau={tau:g}"]
    for fit in ("mle", "listwise")
    for tau in TAUS
}
"""The arms by name, and what each adds to the recipe."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{', '.join(STAGES)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--limit", type=int, help="train at most this many runs in this invocation")
    parser.add_argument("--output", type=Path, default=Path("out/maxent_study"))
    arguments = parser.parse_args()
    unknown = set(arguments.stages) - set(STAGES)
    if unknown:
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    stages = arguments.stages or STAGES
    start = arguments.output / START
    runs = {
        (arm, seed): RunDirectory(arguments.output / "runs" / run_name(arm, seed))
        for seed in arguments.seeds
        for arm in ARMS
    }
    if "train" in stages:
        make_start(start)
        train_runs(runs, start, arguments.limit)
    if "measure" in stages:
        measure_model(start, figures_file(start))
        for run in runs.values():
            if run.summary.exists():
                measure_model(run.final_model, figures_file(run.root))
    if "write" in stages:
        write(runs, start)


def run_name(arm: str, seed: int) -> str:
    """The name of a run's folder: `listwise-0.3-seed-1`."""
    return f"{arm.replace(' τ=', '-')}-seed-{seed}"


def figures_file(folder: Path) -> Path:
    return folder / "study.json"


def make_start(start: Path) -> None:
    """Train the starting point if it is missing."""
    if not (start / "README.md").exists():
        subprocess.run([sys.executable, HERE / "coldstart.py", "--output", start], check=True)


def train_runs(runs: dict[tuple[str, int], RunDirectory], start: Path, limit: int | None) -> None:
    """Train the unfinished runs, seed by seed; at most `limit`."""
    waiting = [(arm, seed, run) for (arm, seed), run in runs.items() if not run.summary.exists()]
    for number, (arm, seed, run) in enumerate(waiting[:limit], 1):
        if run.summary.exists():
            continue  # another invocation has trained it meanwhile
        print(f"{number} of {len(waiting)}: {arm}, seed {seed}", flush=True)
        subprocess.run([sys.executable, "-m", "covey.cli.main", *training(arm, seed, run, start)], check=True)


def training(arm: str, seed: int, run: RunDirectory, start: Path) -> list[str]:
    """The arguments of `covey` that train one run."""
    where = [f"output_dir={run.root.parent}", f"run_name={run.root.name}", f"model.name={start}"]
    return ["train", str(RECIPE), *ARMS[arm], f"seed={seed}", "resume=false", "overwrite=true", *where]


def measure_model(model: Path, file: Path) -> None:
    """Measure a model and store its figures, unless that was done."""
    if file.exists():
        return
    figures = measure(model)
    write_atomically(file, json.dumps(asdict(figures)))
    print(f"{file.parent.name}: accuracy {figures.accuracy:.1%}, pass@8 {figures.pass_at_8:.1%}", flush=True)


def write(runs: dict[tuple[str, int], RunDirectory], start: Path) -> None:
    """Write the tables and the plot of all that was measured."""
    done = {key: run for key, run in runs.items() if figures_file(run.root).exists()}
    if not done:
        raise SystemExit("Nothing is measured yet: run the stages train and measure first.")
    ordered = sorted(done, key=lambda key: (list(ARMS).index(key[0]), key[1]))
    results = [result(arm, seed, done[arm, seed]) for arm, seed in ordered]
    first = mean([series(read_metrics(run.metrics), names.ENTROPY)[0][1] for run in done.values()])
    before = read_figures(start)
    results.insert(0, Result(START, -1, before.accuracy, before.pass_at_8, before.distinct, first, before.truncated, 0))
    write_csv(results, HERE / "results.csv")
    results = read_csv(HERE / "results.csv")  # rounded as in the file, so that the tables follow from it alone
    write_atomically(HERE / "results.md", page(results))
    curves = {
        name: {
            arm: [dict(series(read_metrics(done[key].metrics), name)) for key in ordered if key[0] == arm]
            for arm in dict.fromkeys(arm for arm, _ in ordered)
        }
        for name in (names.EVAL_ACCURACY, names.ENTROPY)
    }
    draw(results, curves[names.EVAL_ACCURACY], curves[names.ENTROPY], HERE / "curves.png")
    print(f"Written: results.csv, results.md and curves.png in {HERE}, from {len(done)} runs")


def result(arm: str, seed: int, run: RunDirectory) -> Result:
    """The results of a run that was trained and measured."""
    figures = read_figures(run.root)
    entropies = [value for _, value in series(read_metrics(run.metrics), names.ENTROPY)]
    seconds = json.loads(run.summary.read_text(encoding="utf-8"))["training_seconds"]
    return Result(
        arm,
        seed,
        figures.accuracy,
        figures.pass_at_8,
        figures.distinct,
        mean(entropies[-LAST_STEPS:]),
        figures.truncated,
        seconds,
    )


def read_figures(folder: Path) -> Figures:
    return Figures(**json.loads(figures_file(folder).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
