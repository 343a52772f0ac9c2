"""Evaluations that the user names, each compared with the first of them: `covey compare` and `covey.compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.errors import ConfigError
from covey.evaluation.comparison import check_metric, compare_evaluations, metric_of, newest_in_common
from covey.evaluation.paired import Comparison, holm
from covey.evaluation.stored import read_stored
from covey.runlog.evaluations import StoredEvaluation, is_evaluation


@dataclass(frozen=True, slots=True)
class Compared:
    """Several evaluations on the same problems."""

    evaluations: list[StoredEvaluation]
    metric: str
    """What is compared, by its name after `eval/`."""
    results: list[Comparison]
    """Each but the first evaluation against the first."""

    @property
    def corrected(self) -> list[float]:
        """The p-values after Holm's correction for several comparisons."""
        return holm([result.p_value for result in self.results])

    @property
    def values(self) -> list[float]:
        """The figure of each evaluation."""
        return [self.results[0].first, *(result.second for result in self.results)]

    @property
    def grader(self) -> str | None:
        """What has graded the answers."""
        grader: str | None = self.evaluations[0].settings.get("grader")
        return grader


def compare_all(
    evaluations: Sequence[StoredEvaluation], metric: str | None = None, *, any_sampling: bool = False
) -> Compared:
    """Compare two or more evaluations with the first of them.

    Args:
        evaluations: from `find_evaluations`.
        metric: a figure that all of them have; None takes the accuracy, or without a grader the mean reward.
        any_sampling: compare also where the sampling settings differ.

    Raises:
        RunDirectoryError: they cannot be compared, or not by this figure.
    """
    if metric is not None:
        check_metric(evaluations, metric)
    first, *others = evaluations
    results = [compare_evaluations(first, other, metric=metric, any_sampling=any_sampling) for other in others]
    return Compared([*evaluations], metric or metric_of(first), results)


def find_evaluations(folders: Sequence[Path]) -> list[StoredEvaluation]:
    """One evaluation per folder or file; of run directories the newest that all of them have.

    Raises:
        ConfigError: one is named twice.
        RunDirectoryError: one holds no evaluation, or the runs have none in common.
    """
    if repeated := [str(folder) for folder, count in Counter(folders).items() if count > 1]:
        raise ConfigError(f"{', '.join(repeated)} is given twice: a run is compared with another one.")
    singles = {one: read_stored(one) for one in folders if one.suffix == ".jsonl" or is_evaluation(one)}
    runs = [folder for folder in folders if folder not in singles]
    wanted = next((one.settings.get("name") for one in singles.values()), None)
    singles |= dict(zip(runs, newest_in_common(runs, wanted), strict=True))
    return [singles[folder] for folder in folders]
