"""Runs of `covey train` on this machine: seconds of a round in turns and side by side, and learning curves."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.runlog import RunDirectory, names, read_metrics
from covey.runlog.overlap import measured_rounds
from overlap.step_ends import FILE

Say = Callable[[str], None]

STEPS, WARMUP = 60, 10
"""Steps of a timed run, and those at its beginning that do not count."""
SHAPES = {
    "the starter as it is: 128 completions, four micro-batches": (),
    "one micro-batch of 16 completions": (
        "training.per_device_train_batch_size=16",
        "training.gradient_accumulation_steps=1",
    ),
}
_TIMED = (
    *("evaluation.every_steps=0", "evaluation.before_training=false", "training.save_strategy=no", "logging=none"),
    *(f"training.max_steps={STEPS}", "logging.completions_every_steps=0"),
    f"callbacks=[{Path(__file__).with_name('step_ends.py')}:StepEnds]",
)
_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Two-sided 95% quantile of Student's t for so many values."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a timed run generates and learns."""

    name: str
    staleness: int
    threads: int
    """Of both sides together: with `training.staleness` the rollout process gets half of them."""


WAYS = (
    Way("in turns, 1 thread", 0, 1),
    Way("in turns, 2 threads", 0, 2),
    Way("N = 1, 1 thread each", 1, 2),
    Way("N = 2, 1 thread each", 2, 2),
)


def time_all(output: Path, repeats: int, results: list[dict[str, Any]], say: Say, keep: Callable[[], None]) -> None:
    """Time every shape in every way, alternating; what is in `results` already is not run again.

    Args:
        output: folder of the runs.
        repeats: runs of each.
        results: appended to.
        say: told what is done.
        keep: called after each run.
    """
    for repeat in range(repeats):
        for shape, words in SHAPES.items():
            for way in WAYS:
                key = {"shape": shape, "way": way.name, "repeat": repeat}
                if any(key.items() <= one.items() for one in results):
                    continue
                one = {**key, **_timed(output / "timed", words, way, repeat)}
                results.append(one)
                keep()
                say(f"{shape}; {way.name}: {one['seconds']:.3f} s a round")


def _timed(output: Path, words: Sequence[str], way: Way, repeat: int) -> dict[str, Any]:
    run = RunDirectory(output / "run")
    if run.root.exists():
        shutil.rmtree(run.root)
    train(run, way.threads, f"seed={repeat}", f"training.staleness={way.staleness}", *words, *_TIMED)
    ends = [float(line) for line in (run.root / FILE).read_text().split()]
    rounds = measured_rounds(read_metrics(run.metrics))[WARMUP:]
    return {
        "seconds": (ends[-1] - ends[WARMUP - 1]) / (len(ends) - WARMUP),
        "generation": statistics.fmean(one.generation for one in rounds),
        "learning": statistics.fmean(one.learning for one in rounds),
    }


def train(run: RunDirectory, threads: int, *words: str) -> None:
    """Run `covey train` in a process of its own.

    Args:
        run: its run directory.
        threads: of both sides together.
        words: overrides.
    """
    environment = dict(os.environ)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = str(threads)
    command = [sys.executable, "-m", "covey", "train", f"output_dir={run.root.parent}", f"run_name={run.root.name}"]
    run.root.parent.mkdir(parents=True, exist_ok=True)
    with run.root.with_name(f"{run.root.name}.txt").open("w") as log:
        done = subprocess.run([*command, *words], env=environment, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise SystemExit(f"{run.root} ended with exit code {done.returncode}: see {log.name}")


def learn_all(
    output: Path, stalenesses: Sequence[int], seeds: Sequence[int], say: Say, keep: Callable[[], None]
) -> None:
    """The first run with every staleness and seed, one thread to each side; finished ones are kept, unfinished ones
    resumed."""
    for seed in seeds:
        for staleness in stalenesses:
            run = curve(output, staleness, seed)
            if not run.summary.is_file():
                train(run, 2 if staleness else 1, f"seed={seed}", f"training.staleness={staleness}", "resume=auto")
            accuracies = accuracy(run)
            say(f"N={staleness}, seed {seed}: {accuracies[max(accuracies)]:.1%}")
            keep()


def curve(output: Path, staleness: int, seed: int) -> RunDirectory:
    """The run of a learning curve."""
    return RunDirectory(output / "curves" / f"staleness-{staleness}-seed-{seed}")


def accuracy(run: RunDirectory) -> dict[int, float]:
    """Held-out accuracy by step."""
    return {
        row[names.STEP]: row[names.EVAL_ACCURACY] for row in read_metrics(run.metrics) if names.EVAL_ACCURACY in row
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean of a few values, and half of its 95% interval by Student's t; NaN for one value."""
    mean, count = statistics.fmean(values), len(values)
    return mean, _T_95[count] * statistics.stdev(values) / math.sqrt(count) if count > 1 else math.nan
