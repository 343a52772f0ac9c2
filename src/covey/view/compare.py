"""Two runs against each other, and every run against a baseline.

By the paired test and under the guards of `covey compare`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from covey.config.compose.derived_values import with_held_out_seed
from covey.errors import ConfigError, CoveyError
from covey.evaluation.comparison import (
    NotComparableError,
    PairedResult,
    compare_evaluations,
    compare_files,
    correct,
    newest_evaluations,
    newest_in_common,
)
from covey.evaluation.paired import Comparison
from covey.evaluation.stored import by_problem, read_stored
from covey.report.compare import differences
from covey.report.completions import evaluated_group
from covey.report.load import read_mapping
from covey.report.summary import figure_name
from covey.runlog import RunDirectory, names
from covey.runlog.evaluations import SETTINGS, StoredEvaluation, is_evaluation, read_completions
from covey.view.completions import MOST_ROWS, whole
from covey.view.http import Json, wanted
from covey.view.runs import Cache, Entry, RunStore, damage_reported, signature

SHOW = ("changed", "gained", "lost")
"""Which problems: those that changed, those that B has better, and worse."""

_Pair = tuple[str, Path, Path]
"""What two runs have in common: the name of a set or an evaluation, and the file or folder of each."""


def routes(store: RunStore) -> list[Route]:
    """`/api/compare?a=&b=`, with `set`, `show`, `offset` and `limit` for the problems."""
    return [Route("/api/compare", _View(store).compare)]


def pairs(first: Path, other: Path) -> list[_Pair]:
    """The evaluations by which two runs are compared, the main held-out set first.

    Args:
        first: a run, or an evaluation outside of one.
        other: another one.

    Raises:
        RunDirectoryError: one cannot be read, or a run has none on the set of an evaluation.
    """
    alone = [folder for folder in (first, other) if is_evaluation(folder)]
    if not alone:
        ones, others = (newest_evaluations(run, skip_damaged=True) for run in (first, other))
        keys = sorted(ones.keys() & others.keys(), key=lambda key: (key != (True, names.TEST_SET), not key[0], key[1]))
        return [(key[1], ones[key], others[key]) for key in keys]
    name = str(read_stored(alone[0]).settings["name"])
    both = [one if one in alone else newest_in_common([one], name)[0].folder for one in (first, other)]
    return [(name, both[0], both[1])]


def problems_of(pair: _Pair, found: Comparison, show: str, page: slice) -> tuple[int, list[dict[str, Any]]]:
    """The number of the problems that are wanted, and a page of them with what both answered.

    Args:
        pair: the evaluations.
        found: their comparison.
        show: one of `SHOW`; empty for all problems.
        page: which of them.
    """
    ones, others = (by_problem(read_completions(path)) for path in pair[1:])
    changes = dict.fromkeys(found.gained, "gained") | dict.fromkeys(found.lost, "lost")
    places = {"": range(len(ones)), "changed": sorted(changes), "gained": found.gained, "lost": found.lost}[show]
    shown = []
    for place in places[page]:
        sides = [evaluated_group(side[place], None, None) for side in (ones, others)]
        about = {"problem": sides[0].get("problem"), "change": changes.get(place)}
        about |= {"question": sides[0]["question"], "gold": sides[0].get("answer")}
        shown.append(about | {"a": sides[0]["completions"], "b": sides[1]["completions"]})
    return len(places), shown


class _View:
    """The endpoint, which runs in threads."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._compared: Cache[list[tuple[_Pair, PairedResult]]] = Cache(100)

    def compare(self, request: Request) -> Response:
        ids = [wanted(request, "a"), wanted(request, "b")]
        first, other = (self._store.path(one) for one in ids)
        parameters, show = request.query_params, request.query_params.get("show", "changed")
        if show not in ("", *SHOW):
            raise ConfigError(f"show={show} is not possible: it must be one of {', '.join(SHOW)}, or empty for all.")
        offset, limit = whole(parameters, "offset", 0), min(MOST_ROWS, whole(parameters, "limit", 20))
        config = [[key, *values] for key, values in differences([_settings(first), _settings(other)])]
        try:
            found = self._results(first, other)
        except CoveyError as error:
            return Json({"config": config, "metrics": [], "refused": str(error)})
        answer = {"config": config, "metrics": [_metric_as_json(pair[0], result) for pair, result in found]}
        chosen = [one for one in found if parameters.get("set") in (None, "", one[0][0])]
        tested = next((one for one in chosen if one[1].found), chosen[0] if chosen else None)
        if tested is None:
            return Json(answer | {"refused": "they have no evaluation in common"})
        pair, result = tested
        if result.found is None:
            return Json(answer | {"refused": result.reason})
        total, problems = problems_of(pair, result.found, show, slice(offset, offset + limit))
        return Json(answer | {"set": pair[0], "total": total, "problems": problems})

    def _results(self, first: Path, other: Path) -> list[tuple[_Pair, PairedResult]]:
        def compared() -> list[tuple[_Pair, PairedResult]]:
            found = pairs(first, other)
            return list(zip(found, correct([compare_files(*pair) for pair in found]), strict=True))

        return self._compared.get((first, other), (signature(first), signature(other)), compared)


def _settings(folder: Path) -> Mapping[str, Any]:
    """The config of a run; of an evaluation its settings, without what only describes the machine."""
    if not is_evaluation(folder):
        return with_held_out_seed(read_mapping(RunDirectory(folder).config))
    settings = read_mapping(folder / SETTINGS)
    return {key: value for key, value in settings.items() if key not in ("environment", "format")}


def _metric_as_json(name: str, result: PairedResult) -> dict[str, Any]:
    about = {"name": name, "metric": result.metric, "grader": result.grader, "steps": result.steps}
    found = result.found
    if found is None:
        return about | {"refused": result.reason}
    values = {"first": found.first, "second": found.second, "p": found.p_value, "corrected": result.corrected}
    values |= {"value": found.difference, "low": found.low, "high": found.high}
    shown = {key: None if value is None or not math.isfinite(value) else value for key, value in values.items()}
    return about | shown | {"problems": found.problems, "gained": len(found.gained), "lost": len(found.lost)}


class Baseline:
    """Differences between the runs of a folder, computed again when their files change."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._found: Cache[PairedResult] = Cache(10_000)
        self._read: Cache[StoredEvaluation] = Cache(1_000)  # without the completions

    def differences(self, baseline: str, entries: Sequence[Entry]) -> dict[str, dict[str, Any]]:
        """The difference of each entry with a held-out figure from the baseline, by id.

        Args:
            baseline: the id of a run or evaluation.

        Raises:
            UnknownRunError: there is none with this id.
        """
        first = self._store.entry(baseline)
        others = [one for one in entries if one.id != baseline and one.value is not None]
        results = correct([self._compared(first, one) for one in others])
        return {one.id: _difference_as_json(result) for one, result in zip(others, results, strict=True)}

    def _compared(self, first: Entry, other: Entry) -> PairedResult:
        if first.metric != other.metric:
            figures = [f"“{figure_name(entry.metric)}”" if entry.metric else "none" for entry in (first, other)]
            return PairedResult("", reason=f"the figures differ ({figures[0]} and {figures[1]})")
        one, two = self._store.path(first.id), self._store.path(other.id)
        state = signature(one), signature(two)
        return self._found.get((one, two), state, lambda: self._compare(one, two, other.metric))

    def _compare(self, one: Path, two: Path, metric: str | None) -> PairedResult:
        try:
            with damage_reported(two):
                evaluations = self._newest(one, two), self._newest(two, one)
                found = compare_evaluations(*evaluations, metric=metric)
        except NotComparableError as error:
            return PairedResult("", reason=error.reason)
        except CoveyError as error:
            return PairedResult("", reason=str(error))
        name = str(evaluations[0].settings["name"])
        if not found.problems:
            return PairedResult(name, reason="no problem has a score in both")
        return PairedResult(name, found=found)

    def _newest(self, folder: Path, other: Path) -> StoredEvaluation:
        return self._read.get(
            (folder, is_evaluation(other) and other), signature(folder), lambda: _newest(folder, other)
        )


def _newest(folder: Path, other: Path) -> StoredEvaluation:
    """The evaluation of a folder that is compared: of a run the newest of training on the main held-out set, or, beside
    an evaluation of its own, that on the same set."""
    if is_evaluation(folder):
        return read_stored(folder)
    if is_evaluation(other):
        return newest_in_common([folder], str(read_stored(other).settings["name"]))[0]
    found = newest_evaluations(folder, skip_damaged=True)
    of_training = {name: file for (training, name), file in found.items() if training}
    if not of_training:
        return newest_in_common([folder], None)[0]
    return read_stored(of_training.get(names.TEST_SET) or next(iter(of_training.values())))


def _difference_as_json(result: PairedResult) -> dict[str, Any]:
    if result.found is None:
        return {"refused": result.reason}
    found = result.found
    named = {"value": found.difference, "low": found.low, "high": found.high, "p": found.p_value}
    named |= {"corrected": result.corrected} if result.corrected is not None else {}
    return {key: value if math.isfinite(value) else None for key, value in named.items()} | {"problems": found.problems}
