"""Tables of a sweep: its jobs, best first, and means over seeds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from covey.config import load
from covey.errors import CoveyError
from covey.evaluation.comparison import measured_differently
from covey.evaluation.estimators import Estimate, mean, t_estimate
from covey.evaluation.figures import estimate_text, is_share, markdown_table
from covey.evaluation.grading import grader_name
from covey.evaluation.stored import settings_of
from covey.report.load import read_mapping
from covey.report.summary import figure_name, figure_of
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
    metric: str = names.ACCURACY
    """The held-out metric by its name after `eval/`: the accuracy, or without a grader the reward."""
    accuracy: Estimate = _UNKNOWN
    """That metric at the last evaluation after the first step, with its 95% interval."""
    before: Estimate = _UNKNOWN
    """That metric before the first step."""
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
    notes: tuple[str, ...] = ()
    """Which rows cannot be compared, and why."""


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
    metric = names.best_of(rows, _best_by(run.config)) or names.ACCURACY
    sets = names.held_out_sets(rows)
    if evaluated := [row for row in rows if sets and row.get(names.eval_name(sets[0], metric)) is not None]:
        first, last = evaluated[0], evaluated[-1]
        if first[names.STEP] == 0:
            before = figure_of(first, sets[0], metric)
        if last[names.STEP] > 0:
            accuracy = figure_of(last, sets[0], metric)
            length = _number(last.get(names.eval_name(sets[0], names.LENGTH)))
    return JobFigures(rows[-1][names.STEP], metric, accuracy, before, length, mean(rewards[-LAST_STEPS:]))


@cache
def _best_by(config: Path) -> str | None:
    """`evaluation.best_by` of a run, whose config does not change."""
    return (read_mapping(config).get("evaluation") or {}).get("best_by")


def read_results(directory: SweepDirectory, sweep: Sweep) -> list[JobResult]:
    """All jobs of the sweep, finished ones first, then by their held-out figure."""
    found = []
    for job in sweep.jobs:
        state = directory.state(job)
        figures = JobFigures() if state.state == WAITING else read_figures(directory.run(job))
        found.append(JobResult(job, state, figures))
    return sorted(
        found,
        key=lambda one: (one.state.state != FINISHED, one.figures.metric, _descending(one.figures.accuracy.value)),
    )


def pool_seeds(sweep: Sweep, results: Sequence[JobResult]) -> list[SeedsResult]:
    """The finished jobs averaged over the seeds, the best first; empty if the seed was not swept.

    The interval covers the variation between seeds, on the held-out problems of `dataset.seed`, which are the same.
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
        metric = next((one.metric for one in figures), names.ACCURACY)
        pooled.append(
            SeedsResult(
                swept=dict(others),
                seeds=len(figures),
                accuracy=_within(t_estimate(accuracies), metric),
                length=mean([one.length for one in figures]),
                reward=mean([one.reward for one in figures]),
            )
        )
    return sorted(pooled, key=lambda one: _descending(one.accuracy.value))


def _within(estimate: Estimate, metric: str) -> Estimate:
    """The interval clipped to [0, 1] for a share: with two or three seeds the t interval is wide."""
    if math.isnan(estimate.low) or not is_share(metric):
        return estimate
    return replace(estimate, low=max(0.0, estimate.low), high=min(1.0, estimate.high))


def jobs_sheet(
    sweep: Sweep, results: Sequence[JobResult], notes: Sequence[str] = (), grader: str | None = None
) -> Sheet:
    """The table of jobs."""
    metric = metric_of(results)
    headings = ("job", *sweep.keys, figure_name(metric), "before", "length", "reward", "minutes", "state")
    rows = tuple(
        (
            str(one.job.number),
            *(one.job.swept[key] for key in sweep.keys),
            *(_cell(figure, one.figures.metric, metric) for figure in (one.figures.accuracy, one.figures.before)),
            _decimal(one.figures.length, 1),
            _decimal(one.figures.reward, 2),
            _decimal(one.state.seconds / 60 or math.nan, 1),
            one.state.state,
        )
        for one in results
    )
    return Sheet(
        f"Jobs: held-out {figure_name(metric, grader)}, in brackets its 95% interval", headings, rows, tuple(notes)
    )


def seeds_sheet(sweep: Sweep, pooled: Sequence[SeedsResult], metric: str, grader: str | None = None) -> Sheet:
    """The table of means over seeds."""
    others = [key for key in sweep.keys if key != SEED]
    rows = tuple(
        (
            *(one.swept[key] for key in others),
            str(one.seeds),
            _cell(one.accuracy, metric, metric),
            _decimal(one.length, 1),
            _decimal(one.reward, 2),
        )
        for one in pooled
    )
    headings = (*others, "seeds", figure_name(metric), "length", "reward")
    return Sheet(
        f"Mean over seeds: held-out {figure_name(metric, grader)}, in brackets its 95% t interval", headings, rows
    )


def metric_of(results: Sequence[JobResult]) -> str:
    """The held-out metric of the table: that of the first job with one."""
    known = (one.figures.metric for one in results if not math.isnan(one.figures.accuracy.value))
    return next(known, names.ACCURACY)


def _cell(estimate: Estimate, own: str, metric: str) -> str:
    return "—" if math.isnan(estimate.value) or own != metric else estimate_text(estimate, metric)


def incomparable(directory: SweepDirectory, results: Sequence[JobResult]) -> tuple[list[str], str | None]:
    """The jobs that cannot be compared with the first of the table, and why; and the grader of all others."""
    metric, notes = metric_of(results), []
    first: tuple[int, dict[str, Any]] | None = None
    for one in results:
        if math.isnan(one.figures.accuracy.value):
            continue
        number = one.job.number
        try:
            config = load(recipe=directory.config(one.job))
            settings = settings_of(config, grader_name(config))
        except CoveyError as error:
            notes.append(f"Job {number} cannot be compared: {error}")
            continue
        first = first or (number, settings)
        differ = measured_differently(first[1], settings, metric)
        if one.figures.metric != metric:
            differ = f"it has no {figure_name(metric)}"
        if differ:
            notes.append(f"Job {number} cannot be compared with job {first[0]}: {differ}.")
    return notes, first[1]["grader"] if first else None


def write_tables(directory: SweepDirectory, sweep: Sweep, results: Sequence[JobResult]) -> list[Sheet]:
    """Write `sweep.md` and `sweep.csv`; returns the tables of the former."""
    notes, grader = incomparable(directory, results)
    sheets = [jobs_sheet(sweep, results, notes, grader)]
    pooled = pool_seeds(sweep, results)
    if any(one.seeds for one in pooled):
        sheets.append(seeds_sheet(sweep, pooled, metric_of(results), grader))
    with guard_disk("the table of the sweep", directory.root):
        text = f"# Sweep {directory.root.name}\n"
        for sheet in sheets:
            below = "".join(f"\n{note}\n" for note in sheet.notes)
            text += f"\n{sheet.title}\n\n{markdown_table(sheet.headings, sheet.rows)}{below}"
        write_atomically(directory.markdown, text)
        write_atomically(directory.csv, _csv(sweep, results))
    return sheets


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _descending(value: float) -> float:
    return math.inf if math.isnan(value) else -value


def _decimal(value: float, digits: int) -> str:
    return "—" if math.isnan(value) else f"{value:.{digits}f}"


def _csv(sweep: Sweep, results: Sequence[JobResult]) -> str:
    """Full precision for programs: shares between 0 and 1, empty if unknown."""
    ends, metric = [item.name for item in fields(Estimate)], metric_of(results)
    metric = metric if metric == names.ACCURACY else f"eval/{metric}"  # the training reward has a column of its own
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    estimates = [f"{name}_{end}".removesuffix("_value") for name in (metric, "before") for end in ends]
    writer.writerow(["job", "name", *sweep.keys, "state", *estimates, "length", "reward", "minutes", "step"])
    for one in results:
        shown = one.figures
        numbers = [getattr(estimate, end) for estimate in (shown.accuracy, shown.before) for end in ends]
        numbers += [shown.length, shown.reward, one.state.seconds / 60]
        cells = ["" if math.isnan(number) else repr(number) for number in numbers]
        swept = [one.job.swept[key] for key in sweep.keys]
        writer.writerow([one.job.number, one.job.name, *swept, one.state.state, *cells, shown.step])
    return file.getvalue()
