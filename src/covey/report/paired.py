"""Paired comparison of two runs on the same held-out problems, from each run's newest evaluations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covey.answers import Outcome
from covey.errors import ConfigError
from covey.evaluation.paired import Comparison, compare
from covey.runlog import RunDirectory
from covey.runlog.evaluations import list_evaluations

_NAMED = re.compile(r"(.+)-step-(\d+)")

Problem = tuple[int, str]
"""Its index in its set, and its prompt."""
Scores = Mapping[Problem, list[float]]
"""For each problem, 1 per correct completion and 0 per other one."""


def newest_evaluations(run: RunDirectory) -> dict[str, tuple[int, Scores]]:
    """By evaluation set: the step of a run's newest evaluation (0 if it has none), and its scores.

    Raises:
        ConfigError: a file holds something other than graded completions.
        RunDirectoryError: an evaluation cannot be read.
    """
    found: dict[str, tuple[int, Iterable[Mapping[str, Any]]]] = {}
    for path in sorted(run.evaluation.glob("*.jsonl")):
        _keep_newest(found, path.stem, _lines(path))
    for stored in list_evaluations(run.root):
        _keep_newest(found, stored.name, stored.completions())
    return {name: (step, _scores(run.evaluation / name, records)) for name, (step, records) in found.items()}


def compare_problems(first: Scores, second: Scores) -> Comparison | None:
    """The paired comparison; None unless both answered the same problems."""
    if not first or first.keys() != second.keys():
        return None
    return compare(list(first.values()), [second[problem] for problem in first])


def _keep_newest(
    found: dict[str, tuple[int, Iterable[Mapping[str, Any]]]], name: str, records: Iterable[Mapping[str, Any]]
) -> None:
    named = _NAMED.fullmatch(name)
    held_out, step = (named[1], int(named[2])) if named else (name, 0)
    if step >= found.get(held_out, (-1, ()))[0]:
        found[held_out] = step, records


def _scores(where: Path, records: Iterable[Mapping[str, Any]]) -> Scores:
    scores: dict[Problem, list[float]] = {}
    for number, record in enumerate(records, start=1):
        try:
            problem = int(record["problem"]), str(record.get("prompt", record.get("problem_id", "")))
            scores.setdefault(problem, []).append(float(record["outcome"] == Outcome.RIGHT))
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{where}: number {number} of its newest evaluation is not a graded completion: the file was cut short "
                "or changed. Delete it, and the comparison uses the evaluation before it."
            ) from None
    return scores


def _lines(path: Path) -> Iterable[Mapping[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ConfigError(
                f"{path}, line {number}, is not a graded completion: the file was cut short or changed. Delete it, and "
                "the comparison uses the evaluation before it."
            )
        yield record
