"""The study: which objectives keep several right answers, and at what accuracy.

    python studies/exploration/run.py [starts] [runs] [write] [--jobs 2] [--limit N] [--output DIR]

Makes the starts, trains and measures each run that is not done yet (its training is a separate `covey train`), and
writes the data, tables and picture next to this file. After a stop, the same command resumes. Where nothing was
measured, `write` makes the tables and the picture from the data next to this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from arms import HERE, PROBLEMS, STARTS, TASKS, Run, runs, training
from measure import measure, measurements, start_measured
from results import write

from covey.evaluation.estimators import mean
from covey.runlog import RunDirectory, write_atomically

STAGES = ("starts", "runs", "write")
PREREGISTRATION = HERE / "preregistration.md"


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
    if output.is_dir() or set(stages) & {"starts", "runs"}:
        check_preregistration(output)
    os.environ["OMP_NUM_THREADS"] = "1"  # of every process of the study
    if "starts" in stages:
        in_parallel(make_start, [(output, task, start) for start in STARTS for task in TASKS], arguments.jobs)
    if "runs" in stages:
        shares = {task: share_of(output, task) for task in TASKS}
        waiting = [run for run in runs() if not all(file.is_file() for *_, file in measurements(output, run))]
        in_parallel(
            train_and_measure, [(output, run, shares[run.task]) for run in waiting[: arguments.limit]], arguments.jobs
        )
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


def make_start(output: Path, task: str, start: int) -> str:
    """Make a start if it is missing, and measure it: the mean length of the starts fixes τ."""
    folder = start_of(output, task, start)
    if not (folder / "config.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        words = ("starter", str(folder), "--task", task, "--seed", str(start), *PROBLEMS[task])
        covey(output / "logs" / f"start-{task}-{start}.log", *words)
    return measure(task, folder, start_measured(output, task, start))


def share_of(output: Path, task: str) -> float:
    """T / T_max: the mean length of the starts' completions, as a share of the longest."""
    files = [start_measured(output, task, start) for start in STARTS]
    return mean([json.loads(file.read_text(encoding="utf-8"))["length_share"] for file in files])


def train_and_measure(output: Path, run: Run, share: float) -> str:
    """Train a run unless that was done, and measure what is not measured of it."""
    folder = RunDirectory(output / "runs" / run.name)
    if not folder.summary.exists():
        words = training(run, start_of(output, run.task, run.start), output / "runs", share)
        covey(output / "logs" / f"{run.name}.log", *words)
    for step, temperature, file in measurements(output, run):
        found = measure(run.task, folder.checkpoint(step), file, temperature)
    return found


def in_parallel(work: Callable[..., str], waiting: Iterable[tuple[Any, ...]], jobs: int) -> None:
    """Call a function with each of some arguments, so many at a time, and print what it returns."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(work, *arguments) for arguments in waiting]
        try:
            for number, task in enumerate(as_completed(tasks), 1):
                print(f"{number} of {len(tasks)}: {task.result()}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def covey(log: Path, *words: str) -> None:
    """Run a command of Covey; its output goes to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        command = [sys.executable, "-m", "covey.cli.main", *words]
        if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode:
            raise RuntimeError(f"covey {words[0]} failed; its output is in {log}.")


if __name__ == "__main__":
    main()
