"""The report's tables: evaluations of the run, and problems with several right answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.evaluation.comparison import metric_of
from covey.evaluation.estimators import Estimate
from covey.evaluation.figures import UNDEFINED, estimate_text, value_text
from covey.runlog import RunDirectory, names
from covey.runlog.evaluations import StoredEvaluation, list_evaluations
from covey.runlog.metrics import Row

_MORE = ("pass@", "maj@", f"{names.DISTINCT}@", f"{names.COVERAGE}@")


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One finished evaluation."""

    set_name: str
    """The benchmark, or the held-out set."""
    state: str
    """The weights: `final`, `best` or `checkpoint-N`."""
    sampling: str
    """The sampling parameters as text."""
    problems: int
    samples: int
    """Completions per problem."""
    grader: str | None
    figures: Mapping[str, Estimate]
    """First the accuracy, or without a grader the mean reward; then pass@k, maj@k, distinct@k and coverage@k of the
    largest k, if there are several completions."""
    folder: str
    """Its name within the run's folder `evaluation`."""

    @property
    def label(self) -> str:
        """What the benchmark or held-out set is called for users."""
        return names.set_label(self.set_name)

    @property
    def text(self) -> str:
        """The figures: `accuracy 63.2% [60.1 to 66.2]; pass@4 …`, with the grader."""
        return "; ".join(f"{name} {estimate_text(one, name)}" for name, one in self.figures.items()) + self._graded

    @property
    def main_text(self) -> str:
        """The first figure: `63.2% [60.1 to 66.2]`, with the grader."""
        name, figure = next(iter(self.figures.items()))
        return estimate_text(figure, name) + self._graded

    @property
    def _graded(self) -> str:
        return f" (grader: {self.grader})" if self.grader else ""


def evaluation_rows(run: RunDirectory) -> list[EvaluationRow]:
    """The evaluations of a run, oldest first; damaged ones are skipped with a warning."""
    return [
        _row(stored) for stored in list_evaluations(run.root, skip_damaged=True) if metric_of(stored) in stored.summary
    ]


def sampling_text(sampling: Mapping[str, Any]) -> str:
    """The sampling settings of an evaluation: `greedy`, or `temperature 0.7, top-k 50`."""
    temperature = sampling.get("temperature")
    if not temperature:
        return "greedy" if temperature == 0 else ""
    words = [f"temperature {temperature:g}"]
    words += [f"top-k {sampling['top_k']}"] if sampling.get("top_k") else []
    words += [f"top-p {sampling['top_p']:g}"] if sampling.get("top_p", 1.0) < 1 else []
    return ", ".join(words)


def _row(stored: StoredEvaluation) -> EvaluationRow:
    settings = stored.settings
    samples = int(settings["num_samples"])
    shown = [metric_of(stored), *(_of_largest_k(stored.summary) if samples > 1 else [])]
    name = str(settings["name"])
    state = stored.name.removeprefix(f"{name}-")
    state = "-".join(state.split("-")[:2]) if state.startswith("checkpoint-") else state.partition("-")[0]
    return EvaluationRow(
        set_name=name,
        state=state,
        sampling=sampling_text(settings.get("sampling") or {}),
        problems=int(settings["data"]["problems"]),
        samples=samples,
        grader=settings.get("grader"),
        figures={metric: Estimate(**stored.summary[metric]) for metric in shown},
        folder=stored.name,
    )


def _of_largest_k(summary: Mapping[str, Any]) -> list[str]:
    """The pass@k and its like of the largest k above 1."""
    found = []
    for kind in _MORE:
        ks = [int(name.removeprefix(kind)) for name in summary if name.startswith(kind)]
        found += [f"{kind}{k}" for k in ks if k == max(ks) > 1]
    return found


_SHOWN = (
    (names.COVERAGE, "share of the right answers"),
    (names.DISTINCT, "different right answers"),
    (names.DISTINCT_IF_SOLVED, "different right answers, if one is right"),
)


@dataclass(frozen=True, slots=True)
class ModesRow:
    """One figure of one held-out set."""

    set_name: str
    """As users read it."""
    figure: str
    """Its name, as `coverage@8`."""
    meaning: str
    first: str
    """At the first evaluation, with its interval."""
    last: str
    chance: str
    """What random well-formed answers reach."""
    steps: tuple[int, int]


def modes_rows(rows: Sequence[Row]) -> list[ModesRow]:
    """The figures of the largest k, for each held-out set; empty for a run whose problems have no known modes."""
    found = []
    for held_out in names.held_out_sets(rows):
        for kind, meaning in _SHOWN:
            metric = largest_k(rows, held_out, kind)
            there = [row for row in rows if metric and row.get(names.eval_name(held_out, metric)) is not None]
            if metric is None or not there:
                continue
            chance = there[-1].get(names.eval_name(held_out, names.CHANCE + metric))
            first, last = (estimate_text(_estimate(row, held_out, metric), metric) for row in (there[0], there[-1]))
            random = UNDEFINED if chance is None else value_text(float(chance), metric)
            steps = int(there[0][names.STEP]), int(there[-1][names.STEP])
            found.append(ModesRow(names.set_label(held_out), metric, meaning, first, last, random, steps))
    return found


def largest_k(rows: Sequence[Row], held_out: str, kind: str) -> str | None:
    """The metric of this kind with the largest k, as `coverage@8`; None without one."""
    start = names.eval_name(held_out, f"{kind}@")
    ks = {name.removeprefix(start) for name in names.logged(rows) if name.startswith(start)}
    whole = [int(k) for k in ks if k.isdigit()]
    return f"{kind}@{max(whole)}" if whole else None


def _estimate(row: Mapping[str, Any], held_out: str, metric: str) -> Estimate:
    value, low, high = (row.get(names.eval_name(held_out, metric + end)) for end in ("", "_low", "_high"))
    return Estimate(*(math.nan if one is None else float(one) for one in (value, low, high)))
