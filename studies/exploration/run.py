"""The study: which objectives keep several right answers, and at what accuracy.

    python studies/exploration/run.py [starts] [train] [measure] [write] [--jobs 2] [--limit N] [--output DIR]

Makes the starts, trains what is not trained yet (each run is a separate `covey train`), measures what is not measured
yet, and writes the data, tables and pictures next to this file. After a stop, the same command resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from arms import CHECKPOINTS, HERE, PROBLEMS, STARTS, STEPS, TASKS, Run, runs, training
from measure import measure, measured
from results import write

from covey.evaluation.estimators import mean
from covey.runlog import RunDirectory, write_atomically

STAGES = ("starts", "train", "measure", "write")
PREREGISTRATION = HERE / "preregistration.md"
HOTTER = 1.2
"""The temperature of the control: `dr_grpo` sampled hotter."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{', '.join(STAGES)}; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each (2)")
    parser.add_argument("--limit", type=int, help="train at most this many runs in this invocation")
    parser.add_argument("--output", type=Path, default=Path("out/exploration_study"))
    arguments = parser.parse_args()
    if unknown := set(arguments.stages) - set(STAGES):
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    stages, output = arguments.stages or STAGES, arguments.output
    check_preregistration(output)
    if "starts" in stages:
        make_starts(output)
    if "train" in stages:
        train(output, arguments.jobs, arguments.limit)
    if "measure" in stages:
        measure_all(output)
    if "write" in stages:
        write(output, digest(), HERE)


def digest() -> str:
    """The SHA-256 of the preregistration."""
    return hashlib.sha256(PREREGISTRATION.read_bytes()).hexdigest()


def check_preregistration(output: Path) -> None:
    """Note the preregistration that this study is made under; end if it was another one."""
    file = output / "preregistration.sha256"
    if not file.is_file():
        output.mkdir(parents=True, exist_ok=True)
        write_atomically(file, digest() + "\n")
    elif file.read_text(encoding="utf-8").strip() != digest():
        raise SystemExit(
            f"{output} was made under another preregistration.md: its results cannot be mixed with this one's. Give "
            "another --output, or restore the file."
        )


def start_of(output: Path, task: str, start: int) -> Path:
    return output / "starts" / f"{task}-{start}"


def make_starts(output: Path) -> None:
    """Make the missing starts, and measure them: their mean length fixes τ."""
    for task in TASKS:
        for start in STARTS:
            folder = start_of(output, task, start)
            if not (folder / "config.json").is_file():
                folder.parent.mkdir(parents=True, exist_ok=True)
                covey("starter", str(folder), "--task", task, "--seed", str(start), *PROBLEMS[task])
            measure(task, folder, output / "measured" / f"start-{task}-{start}.json")


def share_of(output: Path, task: str) -> float:
    """T / T_max: the mean length of the starts' completions, as a share of the longest."""
    files = [output / "measured" / f"start-{task}-{start}.json" for start in STARTS]
    return mean([json.loads(file.read_text(encoding="utf-8"))["length_share"] for file in files])


def train(output: Path, jobs: int, limit: int | None) -> None:
    """Train the unfinished runs, at most `limit`, `jobs` at a time."""
    waiting = [run for run in runs() if not RunDirectory(output / "runs" / run.name).summary.exists()][:limit]
    shares = {task: share_of(output, task) for task in TASKS}

    def one(numbered: tuple[int, Run]) -> None:
        number, run = numbered
        print(f"{number} of {len(waiting)}: {run.name}", flush=True)
        start = start_of(output, run.task, run.start)
        covey(*training(run, start, output / "runs", shares[run.task]), log=output / "logs" / f"{run.name}.log")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, enumerate(waiting, 1)))


def measure_all(output: Path) -> None:
    """Measure every checkpoint that is there and not measured yet."""
    for run in runs():
        folder = RunDirectory(output / "runs" / run.name)
        if not folder.summary.exists():
            continue
        for step in CHECKPOINTS:
            measure(run.task, folder.checkpoint(step), measured(output, run, step))
        measure(run.task, folder.checkpoint(STEPS), measured(output, run, STEPS, temperature=0.0), temperature=0.0)
        if run.arm.name == "dr_grpo":
            hotter = measured(output, run, STEPS, temperature=HOTTER)
            measure(run.task, folder.checkpoint(STEPS), hotter, temperature=HOTTER)


def covey(*words: str, log: Path | None = None) -> None:
    """Run a command of Covey with one thread; its output goes to the terminal or to a log."""
    command = [sys.executable, "-m", "covey.cli.main", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if log is None:
        subprocess.run(command, check=True, env=environment)
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        if subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT).returncode:
            raise SystemExit(f"A run failed; its output is in {log}.")


if __name__ == "__main__":
    main()
