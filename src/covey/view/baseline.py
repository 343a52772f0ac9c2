"""How every run differs from one of them, the baseline: by the paired test and under the guards of `covey compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covey.errors import CoveyError
from covey.evaluation.comparison import (
    NotComparableError,
    PairedResult,
    compare_evaluations,
    correct,
    newest_evaluations,
    newest_in_common,
)
from covey.evaluation.stored import read_stored
from covey.report.summary import figure_name
from covey.runlog import names
from covey.runlog.evaluations import StoredEvaluation, is_evaluation
from covey.view.cache import Cache
from covey.view.discovery import signature
from covey.view.entries import Entry, damage_reported
from covey.view.store import RunStore


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
        return {one.id: _as_json(result) for one, result in zip(others, results, strict=True)}

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


def _as_json(result: PairedResult) -> dict[str, Any]:
    if result.found is None:
        return {"refused": result.reason}
    found = result.found
    named = {"value": found.difference, "low": found.low, "high": found.high, "p": found.p_value}
    named |= {"corrected": result.corrected} if result.corrected is not None else {}
    return {key: value if math.isfinite(value) else None for key, value in named.items()} | {"problems": found.problems}
