"""The figures of problems with several right answers: distinct@k, coverage@k, and what random answers reach."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.answers import Outcome
from covey.answers.tasks import MODES
from covey.evaluation.estimators import (
    Estimate,
    chance_at_k,
    coverage_at_k,
    distinct_at_k,
    mean,
    mean_estimate,
    ratio_estimate,
    share_estimate,
)
from covey.evaluation.passk import pass_at_k
from covey.runlog import names


@dataclass(frozen=True, slots=True)
class ProblemModes:
    """The completions of one problem, by mode."""

    counts: tuple[int, ...]
    """Right completions of each mode that was found."""
    right: int
    samples: int
    modes: int | None = None
    """Different right answers that the problem has; None where that is not known."""
    chances: tuple[float, ...] | None = None
    """The probability of each under random well-formed answers; None where that is not known."""

    def distinct(self, k: int) -> float:
        """See `distinct_at_k`."""
        return distinct_at_k(self.counts, self.samples, k)

    def coverage(self, k: int) -> float:
        """See `coverage_at_k`; NaN where the number of right answers is not known."""
        return (
            coverage_at_k(self.counts, self.samples, k, max(self.modes, len(self.counts))) if self.modes else math.nan
        )

    def passed(self, k: int) -> float:
        """See `pass_at_k`."""
        return pass_at_k(self.samples, self.right, k)


def by_mode(problems: Iterable[Sequence[Mapping[str, Any]]], grader: str | None) -> tuple[list[ProblemModes], bool]:
    """The completions of each problem by mode, and whether their grader names modes.

    Args:
        problems: for each problem its completions, as they are stored.
        grader: their grader. Those of `answers.tasks.MODES` know every right answer; for others the data may say how
            many there are (a column `num_modes`).
    """
    known, found = MODES.get(str(grader)), []
    for items in problems:
        right = [item for item in items if item["outcome"] == Outcome.RIGHT]
        counts = Counter(item.get(names.MODE) for item in right)
        counts.pop(None, None)
        every = known(items[0]["answer"]) if known else None
        modes = items[0].get(names.NUM_MODES) if every is None else len(every)
        chances = None if every is None else tuple(every.values())
        found.append(ProblemModes(tuple(counts.values()), len(right), len(items), modes, chances))
    return found, known is not None or any(problem.counts for problem in found)


def values_at_k(problems: Sequence[Sequence[Mapping[str, Any]]], metric: str, grader: str | None) -> list[float] | None:
    """The value of each problem in a figure such as `pass@8`, `distinct@8` or `coverage@8`; NaN where it is undefined.

    Args:
        problems: see `by_mode`.
        metric: the figure's name.
        grader: see `by_mode`.

    Returns:
        None where there is no such figure, or k is above the completions of a problem.
    """
    kind, _, text = metric.partition("@")
    value = {"pass": ProblemModes.passed, names.DISTINCT: ProblemModes.distinct, names.COVERAGE: ProblemModes.coverage}
    if kind not in value or not text.isdecimal() or not 1 <= int(text) <= min(map(len, problems), default=0):
        return None
    found, named = by_mode(problems, grader)
    return [value[kind](problem, int(text)) for problem in found] if named or kind == "pass" else None


def mode_metrics(problems: Sequence[ProblemModes], ks: Iterable[int]) -> dict[str, Estimate]:
    """`distinct@k`, `distinct_if_solved@k`, `coverage@k` and what random answers reach, `chance/…`; each k is at most
    the fewest completions of a problem."""
    ks, found = [*ks], dict[str, Estimate]()
    counted = [problem for problem in problems if problem.modes]
    for k in ks:
        distinct = [problem.distinct(k) for problem in problems]
        found[f"{names.DISTINCT}@{k}"] = mean_estimate(distinct, lowest=0.0)
        found[f"{names.DISTINCT_IF_SOLVED}@{k}"] = ratio_estimate(distinct, [problem.passed(k) for problem in problems])
        if counted:
            shares = [problem.coverage(k) for problem in counted]
            found[f"{names.COVERAGE}@{k}"] = share_estimate(shares, sum(p.samples for p in counted), k)
    return found | chance_metrics(problems, ks)


def chance_metrics(problems: Sequence[ProblemModes], ks: Iterable[int]) -> dict[str, Estimate]:
    """What k random well-formed answers reach, over the problems for which that is known: exact, so without an
    interval."""
    known = [(problem.modes, problem.chances) for problem in problems if problem.modes and problem.chances is not None]
    if not known:
        return {}
    found = {"accuracy": mean([math.fsum(chances) for _, chances in known])}
    for k in ks:
        passed, distinct = zip(*(chance_at_k(chances, k) for _, chances in known), strict=True)
        found[f"pass@{k}"] = mean(passed)
        found[f"{names.DISTINCT}@{k}"] = mean(distinct)
        found[f"{names.DISTINCT_IF_SOLVED}@{k}"] = math.fsum(distinct) / (math.fsum(passed) or math.nan)
        found[f"{names.COVERAGE}@{k}"] = mean([d / modes for d, (modes, _) in zip(distinct, known, strict=True)])
    return {f"{names.CHANCE}{name}": Estimate(value, math.nan, math.nan) for name, value in found.items()}
