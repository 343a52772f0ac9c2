"""The statistics of the study: pure functions of the rows that `measure.py` writes.

A pair is one (start, seed), which every arm has: differences between arms are taken within pairs. Pairs of one start
share its weights, so `over_starts` looks at the starts' means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from covey.evaluation.estimators import Estimate, mean, standard_error, t_estimate, t_p_value
from covey.evaluation.paired import holm

MARGIN = 0.03
"""Equivalence of mean@8: true differences within this many either way count as none (TOST)."""
Pair = tuple[int, int]
"""Start and seed."""
Figures = Mapping[Pair, float]
"""One figure of an arm by pair."""
Paths = Mapping[Pair, Sequence[tuple[float, float]]]
"""For each pair (accuracy, figure) of the start and of every checkpoint, in the order of training."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One arm less another, over the pairs that both have."""

    pairs: int
    estimate: Estimate
    """The mean with its 95% t interval."""
    p_value: float
    """Two-sided, by the paired t test."""


def difference(arm: Figures, other: Figures) -> Difference:
    """The paired difference of two arms; the p-value is NaN for fewer than two pairs."""
    gaps = _gaps(arm, other)
    found, error = t_estimate(gaps), standard_error(gaps)
    if len(gaps) < 2:
        return Difference(len(gaps), found, math.nan)
    if error == 0:
        return Difference(len(gaps), found, 1.0 if found.value == 0 else 0.0)
    return Difference(len(gaps), found, t_p_value(found.value / error, len(gaps) - 1))


def over_starts(arm: Figures, other: Figures) -> tuple[list[float], float]:
    """The mean difference of the pairs of each start, and the p-value of a t test over these means."""
    gaps = {pair: arm[pair] - other[pair] for pair in arm.keys() & other.keys()}
    starts = sorted({start for start, _ in gaps})
    means = {(start, 0): mean([gap for pair, gap in sorted(gaps.items()) if pair[0] == start]) for start in starts}
    return list(means.values()), difference(means, dict.fromkeys(means, 0.0)).p_value


def equivalence(arm: Figures, other: Figures, margin: float = MARGIN) -> float:
    """The p-value of two one-sided t tests (Schuirmann 1987): small if the difference is within ± margin."""
    gaps = _gaps(arm, other)
    n = len(gaps)
    if n < 2:
        return math.nan
    error = standard_error(gaps)
    if error == 0:
        return 0.0 if abs(mean(gaps)) < margin else 1.0
    t = (margin - abs(mean(gaps))) / error  # of the nearer bound, whose p-value is the larger
    one_sided = t_p_value(t, n - 1) / 2
    return one_sided if t > 0 else 1.0 - one_sided


def corrected(differences: Mapping[tuple[str, ...], Difference]) -> dict[tuple[str, ...], float]:
    """Holm's p-values over the comparisons of one outcome; those without a p-value stay out."""
    tested = {key: one.p_value for key, one in differences.items() if not math.isnan(one.p_value)}
    return dict(zip(tested, holm(list(tested.values())), strict=True))


def at_accuracy(checkpoints: Paths, accuracy: float | Figures) -> dict[Pair, float]:
    """The figure of each pair where its run first reaches an accuracy, linear between checkpoints.

    Args:
        checkpoints: see `Paths`.
        accuracy: the level, or one for each pair. Pairs that have none, never reach it or start above it are left out,
            and the caller says how many.
    """
    found: dict[Pair, float] = {}
    for pair, points in checkpoints.items():
        level = accuracy.get(pair, math.inf) if isinstance(accuracy, Mapping) else accuracy
        before = None
        for at, figure in points:
            if at >= level:
                if before is not None:
                    found[pair] = _between(before, (at, figure), level)
                elif at == level:
                    found[pair] = figure
                break
            before = (at, figure)
    return found


def best(checkpoints: Paths) -> dict[Pair, float]:
    """The highest accuracy of each pair's checkpoints."""
    return {pair: max(at for at, _ in points) for pair, points in checkpoints.items()}


def matched_accuracy(arms: Iterable[Paths]) -> float:
    """The level for `at_accuracy`: the lowest median over arms of the runs' best accuracies, which most runs reach."""
    return min(float(np.median(list(best(pairs).values()))) for pairs in arms if pairs)


@dataclass(frozen=True, slots=True)
class Effect:
    """A coefficient of the linear probability model, with its clustered standard error."""

    value: float
    error: float
    p_value: float


def linear_probability(
    outcome: Sequence[float], arm: Sequence[int], problem: Sequence[int], seed: Sequence[int], cluster: Sequence[int]
) -> Effect:
    """The effect of an arm on a share per problem, with effects of problems and seeds, and clustered errors.

    Ordinary least squares after taking out the means of problems and seeds (two-way, by alternating projections); the
    errors are CR1 (Liang and Zeger 1986), with the number of clusters less one as degrees of freedom.

    Clusters must not be smaller than what has an effect of its own: the two runs of a pair have equal and opposite
    residuals, so that errors clustered by run are too small by about √2 (de Chaisemartin and Ramirez-Cuellar 2024), and
    those clustered by pair are the paired t test's.

    Args:
        outcome: one value per problem and run, such as the share of right completions.
        arm: 1 for the arm, 0 for the other.
        problem: its number.
        seed: the pair's number.
        cluster: the number of what the errors are clustered by.
    """
    y, x = np.asarray(outcome, float), np.asarray(arm, float)
    groups = [np.unique(np.asarray(labels), return_inverse=True)[1] for labels in (problem, seed)]
    for values in (y, x):
        for _ in range(50):
            for labels in groups:
                values -= (np.bincount(labels, values) / np.bincount(labels))[labels]
    square = float(x @ x)
    value = float(x @ y) / square
    scores = np.bincount(np.unique(np.asarray(cluster), return_inverse=True)[1], x * (y - value * x))
    clusters = len(scores)
    error = math.sqrt(clusters / (clusters - 1) * float(scores @ scores)) / square
    p_value = t_p_value(value / error, clusters - 1) if error > 0 else math.nan
    return Effect(value, error, p_value)


def _gaps(arm: Figures, other: Figures) -> list[float]:
    return [arm[pair] - other[pair] for pair in sorted(arm.keys() & other.keys())]


def _between(first: tuple[float, float], second: tuple[float, float], at: float) -> float:
    share = (at - first[0]) / (second[0] - first[0])
    return first[1] + share * (second[1] - first[1])
