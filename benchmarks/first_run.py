"""The first run, measured: `covey train` with several seeds, one after the other, each in its own process.

    python benchmarks/first_run.py [--seeds 0 1 2] [--output out/first_run] [--speed both]

Writes `benchmarks/first_run.md`, a table of held-out accuracy before and after with its 95% interval, completion
length, training time and peak memory, and `docs/images/first_run.png`, the curves of the first seed. With `--speed
both` every seed runs a second time with all of Covey's `speed.*` switches off, and the page compares the two learning
curves. Takes about four minutes per run on two cores; run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from covey.runlog import RunDirectory, names, read_metrics

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "first_run.md"
PICTURE = ROOT / "docs" / "images" / "first_run.png"
HEADING = (
    "| seed | accuracy before | after | points | completion length | steps | training | peak memory |",
    "|---|---|---|---|---|---|---|---|",
)
SWITCHES = ("shared_prefill", "shared_scoring", "trim", "skip_zero")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "first_run")
    parser.add_argument("--speed", choices=("on", "both"), default="on", help="both: once more with it off")
    arguments = parser.parse_args()
    runs: dict[str, list[RunDirectory]] = {
        speed: [] for speed in (("on", "off") if arguments.speed == "both" else ("on",))
    }
    for seed in arguments.seeds:
        for speed, done in runs.items():  # alternating, so that other load affects both
            done.append(train(seed, speed, arguments.output))
    environment = json.loads(runs["on"][-1].environment.read_text(encoding="utf-8"))
    lines = [row(seed, run) for seed, run in zip(arguments.seeds, runs["on"], strict=True)]
    text = page(lines, environment)
    if "off" in runs:
        lines = [row(seed, run) for seed, run in zip(arguments.seeds, runs["off"], strict=True)]
        text += comparison(lines, *runs.values())
    TABLE.write_text(text, encoding="utf-8")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(runs["on"][0].curves, PICTURE)
    print(f"Written: {TABLE} and {PICTURE}")


def train(seed: int, speed: str, output: Path) -> RunDirectory:
    """Run `covey train` once."""
    run = RunDirectory(output / (f"seed-{seed}" if speed == "on" else f"seed-{seed}-speed-off"))
    command = [sys.executable, "-m", "covey.cli.main", "train", f"seed={seed}", "overwrite=true"]
    command += [f"output_dir={output}", f"run_name={run.root.name}"]
    if speed == "off":
        command += [f"speed.{switch}=false" for switch in SWITCHES]
    subprocess.run(command, check=True)
    return run


def row(seed: int, run: RunDirectory) -> str:
    """One line of the table."""
    evaluated = evaluations(run)
    summary = json.loads(run.summary.read_text(encoding="utf-8"))
    first, last = evaluated[0], evaluated[-1]
    gain = 100 * (last[names.EVAL_ACCURACY] - first[names.EVAL_ACCURACY])
    minutes = summary["training_seconds"] / 60
    memory = summary["peak_memory_bytes"] / 1e9
    return (
        f"| {seed} | {accuracy(first)} | {accuracy(last)} | {gain:+.1f} | {first[names.EVAL_LENGTH]:.1f} → "
        f"{last[names.EVAL_LENGTH]:.1f} | {last[names.STEP]} | {minutes:.1f} min | {memory:.2f} GB |"
    )


def accuracy(metrics: dict[str, Any]) -> str:
    value, low, high = (
        100 * metrics[name] for name in (names.EVAL_ACCURACY, names.EVAL_ACCURACY_LOW, names.EVAL_ACCURACY_HIGH)
    )
    return f"{value:.1f}% [{low:.1f}, {high:.1f}]"


def comparison(lines: list[str], on: list[RunDirectory], off: list[RunDirectory]) -> str:
    """The same runs without the speed-ups, and how far the learning curves are apart.

    Sampled tokens differ from the first step on (random numbers are drawn in another order), so the curves can only
    agree within noise: each evaluation's accuracy is averaged over the seeds, and the difference of the two averages is
    compared with its standard error over seeds.
    """
    curves = [[[100 * m[names.EVAL_ACCURACY] for m in evaluations(run)] for run in runs] for runs in (on, off)]
    steps = [m[names.STEP] for m in evaluations(on[0])]
    text = [
        "## Learning with the speed-ups off",
        "",
        f"The same seeds with {', '.join(f'`speed.{switch}=false`' for switch in SWITCHES)}.",
        "",
        *HEADING,
        *lines,
        "",
        "Held-out accuracy, averaged over the seeds. The sampled tokens differ, because random numbers are drawn in",
        "another order; compare the difference with its standard error over seeds.",
        "",
        "| step | speed on | speed off | difference | standard error |",
        "|---|---|---|---|---|",
    ]
    for place, step in enumerate(steps):
        with_speed, without = ([curve[place] for curve in kind] for kind in curves)
        difference = statistics.fmean(with_speed) - statistics.fmean(without)
        error = "–"
        if len(on) > 1:
            variances = (statistics.variance(values) / len(values) for values in (with_speed, without))
            error = f"{math.sqrt(sum(variances)):.1f}"
        text.append(
            f"| {step} | {statistics.fmean(with_speed):.1f}% | {statistics.fmean(without):.1f}% | {difference:+.1f} | "
            f"{error} |"
        )
    return "\n".join(["", *text, ""])


def evaluations(run: RunDirectory) -> list[dict[str, Any]]:
    """The rows of a run's metrics that hold an evaluation."""
    return [m for m in read_metrics(run.metrics) if names.EVAL_ACCURACY in m]


def page(lines: list[str], environment: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items() if version)
    return "\n".join(
        [
            "# The first run, measured",
            "",
            f"Made by `python benchmarks/first_run.py` on {os.cpu_count()} cores, no GPU; {versions}.",
            "Held-out problems, one sampled completion each at temperature 1, 95% intervals.",
            "",
            *HEADING,
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
