"""The first run, measured: the main job with several seeds, one after the other, each a process of its own.

    python benchmarks/first_run.py [--seeds 0 1 2] [--output out/first_run]

Writes `benchmarks/first_run.md`, a table of held-out accuracy before and after with its 95% interval, completion
length, training time and peak memory, and `docs/images/first_run.png`, the curves of the first seed. Needs some four
minutes a seed on two cores; run it with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from covey.runlog import RunDirectory, names, read_metrics

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "first_run.md"
PICTURE = ROOT / "docs" / "images" / "first_run.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "first_run")
    arguments = parser.parse_args()
    lines = []
    for seed in arguments.seeds:
        run = RunDirectory(arguments.output / f"seed-{seed}")
        command = [sys.executable, "-m", "covey.cli.main", "train", f"seed={seed}", "overwrite=true"]
        subprocess.run([*command, f"output_dir={arguments.output}", f"run_name={run.root.name}"], check=True)
        lines.append(row(seed, run))
    environment = json.loads(run.environment.read_text(encoding="utf-8"))
    TABLE.write_text(page(lines, environment), encoding="utf-8")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(arguments.output / f"seed-{arguments.seeds[0]}" / run.curves.name, PICTURE)
    print(f"Written: {TABLE} and {PICTURE}")


def row(seed: int, run: RunDirectory) -> str:
    """One line of the table."""
    metrics = read_metrics(run.metrics)
    evaluated = [m for m in metrics if names.EVAL_ACCURACY in m]
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


def page(lines: list[str], environment: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items() if version)
    return "\n".join(
        [
            "# The first run, measured",
            "",
            f"Made by `python benchmarks/first_run.py` on {os.cpu_count()} cores, no GPU; {versions}.",
            "Held-out problems, one sampled completion each at temperature 1, 95% Wilson intervals.",
            "",
            "| seed | accuracy before | after | points | completion length | steps | training | peak memory |",
            "|---|---|---|---|---|---|---|---|",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
