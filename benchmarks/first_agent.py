"""The first agent, measured: `covey train environment=calculator` with several seeds, one after the other.

    python benchmarks/first_agent.py [--seeds 0 1 2] [--output out/first_agent]

Writes `benchmarks/first_agent.md`, a table of accuracy before and after with its 95% interval, on the held-out problems
and on the harder set, with tool calls per episode, the time of the whole command and peak memory, and
`docs/images/first_agent.png`, the curves of the first seed. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from covey.runlog import RunDirectory, names, read_metrics

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "first_agent.md"
PICTURE = ROOT / "docs" / "images" / "first_agent.png"
HEADING = (
    "| seed | harder set before | after | held-out before | after | tool calls per episode | steps | whole command | "
    "peak memory |",
    "|---|---|---|---|---|---|---|---|---|",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "first_agent")
    arguments = parser.parse_args()
    lines, curves = [], []
    for seed in arguments.seeds:
        run = RunDirectory(arguments.output / f"seed-{seed}")
        began = time.monotonic()
        train(seed, run)
        lines.append(row(seed, run, time.monotonic() - began))
        curves.append(run.curves)
    environment = json.loads(run.environment.read_text(encoding="utf-8"))
    TABLE.write_text(page(lines, environment), encoding="utf-8")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(curves[0], PICTURE)
    print(f"Written: {TABLE} and {PICTURE}")


def train(seed: int, run: RunDirectory) -> None:
    """Run `covey train` once, in a process of its own."""
    command = [sys.executable, "-m", "covey.cli.main", "train", "environment=calculator", f"seed={seed}"]
    command += ["overwrite=true", f"output_dir={run.root.parent}", f"run_name={run.root.name}"]
    subprocess.run(command, check=True)


def row(seed: int, run: RunDirectory, seconds: float) -> str:
    """One line of the table.

    Args:
        seed: the run's seed.
        run: the finished run.
        seconds: of the whole command, start and evaluations included.
    """
    metrics = read_metrics(run.metrics)
    first, last = evaluations(metrics, names.TEST_SET)
    hard = [accuracy(at, names.HARD_SET) for at in evaluations(metrics, names.HARD_SET)]
    calls = [at[names.eval_name(names.TEST_SET, names.CALLS)] for at in (first, last)]
    memory = json.loads(run.summary.read_text(encoding="utf-8"))["peak_memory_bytes"] / 1e9
    return (
        f"| {seed} | {hard[0]} | {hard[1]} | {accuracy(first, names.TEST_SET)} | {accuracy(last, names.TEST_SET)} | "
        f"{calls[0]:.2f} → {calls[1]:.2f} | {last[names.STEP]} | {seconds / 60:.1f} min | {memory:.2f} GB |"
    )


def evaluations(metrics: list[dict[str, Any]], set_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of the first and the last evaluation of a set."""
    found = [at for at in metrics if names.eval_name(set_name, names.ACCURACY) in at]
    return found[0], found[-1]


def accuracy(metrics: dict[str, Any], set_name: str) -> str:
    value, low, high = (100 * one for one in names.accuracy(metrics, set_name))
    return f"{value:.1f}% [{low:.1f}, {high:.1f}]"


def page(lines: list[str], environment: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items() if version)
    return "\n".join(
        [
            "# The first agent, measured",
            "",
            f"Made by `python benchmarks/first_agent.py` on {os.cpu_count()} cores, no GPU; {versions}.",
            "`covey train environment=calculator`, one episode per problem at temperature 1, 95% intervals. The harder",
            "set has five-digit problems; training has two to four digits. The time is that of the whole command, with",
            "its start and all evaluations.",
            "",
            *HEADING,
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
