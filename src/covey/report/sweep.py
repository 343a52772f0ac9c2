"""Tables of a sweep: its jobs, best first, and means over seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from covey.evaluation.estimators import Estimate, mean
from covey.report.t_interval import mean_interval
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.files import guard_disk, write_atomically
from covey.runlog.metrics import read_metrics, series
from covey.runlog.sweep import FINISHED, WAITING, JobState, Sweep, SweepDirectory, SweepJob

SEED = "seed"
"""The swept key that the second table averages over."""
LAST_STEPS = 10
"""The reward shown is the mean over this many last steps; one step is too noisy."""

_UNKNOWN = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class JobFigures:
    """A job's results from its run directory; NaN where unknown."""

    step: int = 0
    """The last step with metrics."""
    accuracy: Estimate = _UNKNOWN
    """Held-out accuracy at the last evaluation after the first step, with its 95% interval."""
    before: Estimate = _UNKNOWN
    """Held-out accuracy before the first step."""
    length: float = math.nan
    """Mean completion length in tokens at that evaluation; without one, at the last training step."""
    reward: float = math.nan
    """Mean reward over the last `LAST_STEPS` steps."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job, its state and its results."""

    job: SweepJob
    state: JobState
    figures: JobFigures


@dataclass(frozen=True, slots=True)
class SeedsResult:
    """The finished jobs that differ only in their seeds, averaged."""

    swept: Mapping[str, str]
    """The other swept keys and their values."""
    seeds: int
    """The number of finished seeds."""
    accuracy: Estimate
    """Mean over the seeds of the held-out accuracy, and its 95% t interval; the ends are NaN for one seed."""
    length: float
    reward: float


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table as text cells."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def read_figures(run: RunDirectory) -> JobFigures:
    """A run's results from its metrics, also while it is running; all unknown without metrics."""
    if not run.metrics.is_file():
        return JobFigures()
    rows = read_metrics(run.metrics)
    if not rows:
        return JobFigures()
    rewards = [value for _, value in series(rows, names.REWARD)]
    lengths = [value for _, value in series(rows, names.COMPLETION_LENGTH)]
    accuracy = before = _UNKNOWN
    length = lengths[-1] if lengths else math.nan
    sets = names.held_out_sets(rows)
    if sets:
        evaluated = [row for row in rows if row.get(names.eval_name(sets[0], names.ACCURACY)) is not None]
        first, last = evaluated[0], evaluated[-1]
        if first[names.STEP] == 0:
            before = _accuracy(first, sets[0])
        if last[names.STEP] > 0:
            accuracy = _accuracy(last, sets[0])
            length = _number(last.get(names.eval_name(sets[0], names.LENGTH)))
    return JobFigures(rows[-1][names.STEP], accuracy, before, length, mean(rewards[-LAST_STEPS:]))


def read_results(directory: SweepDirectory, sweep: Sweep) -> list[JobResult]:
    """All jobs of the sweep, finished ones first, then by accuracy."""
    found = []
    for job in sweep.jobs:
        state = directory.state(job)
        figures = JobFigures() if state.state == WAITING else read_figures(directory.run(job))
        found.append(JobResult(job, state, figures))
    return sorted(found, key=lambda one: (one.state.state != FINISHED, _descending(one.figures.accuracy.value)))


def pool_seeds(sweep: Sweep, results: Sequence[JobResult]) -> list[SeedsResult]:
    """The finished jobs averaged over the seeds, the most accurate first; empty if the seed was not swept.

    The interval covers the variation between seeds. The finite number of held-out problems counts only through what it
    adds to that variation.
    """
    if SEED not in sweep.keys:
        return []
    groups: dict[tuple[tuple[str, str], ...], list[JobFigures]] = {}
    for one in sorted(results, key=lambda one: one.job.number):
        others = tuple((key, value) for key, value in one.job.swept.items() if key != SEED)
        groups.setdefault(others, [])
        if one.state.state == FINISHED:
            groups[others].append(one.figures)
    pooled = []
    for others, figures in groups.items():
        accuracies = [one.accuracy.value for one in figures if not math.isnan(one.accuracy.value)]
        pooled.append(
            SeedsResult(
                swept=dict(others),
                seeds=len(figures),
                accuracy=_share(mean_interval(accuracies)),
                length=mean([one.length for one in figures]),
                reward=mean([one.reward for one in figures]),
            )
        )
    return sorted(pooled, key=lambda one: _descending(one.accuracy.value))


def _share(estimate: Estimate) -> Estimate:
    """The interval clipped to [0, 1]: with two or three seeds the t interval is wide."""
    if math.isnan(estimate.low):
        return estimate
    return replace(estimate, low=max(0.0, estimate.low), high=min(1.0, estimate.high))


def jobs_sheet(sweep: Sweep, results: Sequence[JobResult]) -> Sheet:
    """The table of jobs."""
    headings = ("job", *sweep.keys, "accuracy", "before", "length", "reward", "minutes", "state")
    rows = tuple(
        (
            str(one.job.number),
            *(one.job.swept[key] for key in sweep.keys),
            percent(one.figures.accuracy),
            percent(one.figures.before),
            _decimal(one.figures.length, 1),
            _decimal(one.figures.reward, 2),
            _decimal(one.state.seconds / 60 or math.nan, 1),
            one.state.state,
        )
        for one in results
    )
    return Sheet("Jobs: held-out accuracy, in brackets its 95% interval", headings, rows)


def seeds_sheet(sweep: Sweep, pooled: Sequence[SeedsResult]) -> Sheet:
    """The table of means over seeds."""
    others = [key for key in sweep.keys if key != SEED]
    rows = tuple(
        (
            *(one.swept[key] for key in others),
            str(one.seeds),
            percent(one.accuracy),
            _decimal(one.length, 1),
            _decimal(one.reward, 2),
        )
        for one in pooled
    )
    headings = (*others, "seeds", "accuracy", "length", "reward")
    return Sheet("Mean over seeds: held-out accuracy, in brackets its 95% t interval", headings, rows)


def write_tables(directory: SweepDirectory, sweep: Sweep, results: Sequence[JobResult]) -> list[Sheet]:
    """Write `sweep.md` and `sweep.csv`; returns the tables of the former."""
    sheets = [jobs_sheet(sweep, results)]
    pooled = pool_seeds(sweep, results)
    if any(one.seeds for one in pooled):
        sheets.append(seeds_sheet(sweep, pooled))
    with guard_disk("the table of the sweep", directory.root):
        text = "\n".join(_markdown(sheet) for sheet in sheets)
        write_atomically(directory.markdown, f"# Sweep {directory.root.name}\n\n{text}")
        write_atomically(directory.csv, _csv(sweep, results))
    return sheets


def percent(estimate: Estimate) -> str:
    """A share as `31.2% [28.0 to 34.5]`; a dash if unknown."""
    if math.isnan(estimate.value):
        return "—"
    ends = "" if math.isnan(estimate.low) else f" [{100 * estimate.low:.1f} to {100 * estimate.high:.1f}]"
    return f"{100 * estimate.value:.1f}%{ends}"


def _accuracy(row: Mapping[str, Any], held_out: str) -> Estimate:
    return Estimate(*map(_number, names.accuracy(row, held_out)))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _descending(value: float) -> float:
    return math.inf if math.isnan(value) else -value


def _decimal(value: float, digits: int) -> str:
    return "—" if math.isnan(value) else f"{value:.{digits}f}"


def _markdown(sheet: Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + " --- |" * len(sheet.headings)
    return "\n".join([f"{sheet.title}\n", line(sheet.headings), rule, *map(line, sheet.rows)]) + "\n"


def _csv(sweep: Sweep, results: Sequence[JobResult]) -> str:
    """Full precision for programs: shares between 0 and 1, empty if unknown."""
    ends = [item.name for item in fields(Estimate)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    estimates = [f"{name}_{end}".removesuffix("_value") for name in ("accuracy", "before") for end in ends]
    writer.writerow(["job", "name", *sweep.keys, "state", *estimates, "length", "reward", "minutes", "step"])
    for one in results:
        shown = one.figures
        numbers = [getattr(estimate, end) for estimate in (shown.accuracy, shown.before) for end in ends]
        numbers += [shown.length, shown.reward, one.state.seconds / 60]
        cells = ["" if math.isnan(number) else repr(number) for number in numbers]
        swept = [one.job.swept[key] for key in sweep.keys]
        writer.writerow([one.job.number, one.job.name, *swept, one.state.state, *cells, shown.step])
    return file.getvalue()
