"""The statistics of the study: pure functions of the rows that `measure.py` writes.

A pair is one (start, seed), which every arm has: differences between arms are taken within pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Frontier:
    """What an arm reaches of one figure at another's level, pair by pair, by its checkpoints."""

    accuracy: float
    """The level at which arms are compared."""
    figures: dict[Pair, float]


def at_accuracy(checkpoints: Mapping[Pair, Sequence[tuple[float, float]]], accuracy: float) -> Frontier:
    """The figure of each pair where its run first reaches an accuracy, linear between checkpoints.

    Args:
        checkpoints: for each pair (accuracy, figure) of the start and of every checkpoint, in the order of training.
        accuracy: the level; pairs that never reach it are left out, and the caller says how many.
    """
    found: dict[Pair, float] = {}
    for pair, points in checkpoints.items():
        before = None
        for at, figure in points:
            if at >= accuracy:
                found[pair] = figure if before is None else _between(before, (at, figure), accuracy)
                break
            before = (at, figure)
    return Frontier(accuracy, found)


def matched_accuracy(arms: Mapping[str, Mapping[Pair, Sequence[tuple[float, float]]]]) -> float:
    """The level for `at_accuracy`: the lowest median over arms of the runs' best accuracies, which most runs reach."""
    best = [
        float(np.median([max(at for at, _ in points) for points in pairs.values()])) for pairs in arms.values() if pairs
    ]
    return min(best)


@dataclass(frozen=True, slots=True)
class Effect:
    """A coefficient of the linear probability model."""

    value: float
    error: float
    """Clustered by run."""
    p_value: float


def linear_probability(
    outcome: Sequence[float], arm: Sequence[int], problem: Sequence[int], seed: Sequence[int], run: Sequence[int]
) -> Effect:
    """The effect of an arm on a share per problem, with effects of problems and seeds, and errors clustered by run.

    Ordinary least squares after taking out the means of problems and seeds (two-way, by alternating projections); the
    errors are CR1 (Liang and Zeger 1986), with the number of runs less one as degrees of freedom.

    Args:
        outcome: one value per problem and run, such as the share of right completions.
        arm: 1 for the arm, 0 for the other.
        problem: its number.
        seed: the pair's number.
        run: the run's number.
    """
    y, x = np.asarray(outcome, float), np.asarray(arm, float)
    groups = [np.unique(np.asarray(labels), return_inverse=True)[1] for labels in (problem, seed)]
    for values in (y, x):
        for _ in range(50):
            for labels in groups:
                values -= (np.bincount(labels, values) / np.bincount(labels))[labels]
    square = float(x @ x)
    value = float(x @ y) / square
    scores = np.bincount(np.unique(np.asarray(run), return_inverse=True)[1], x * (y - value * x))
    clusters = len(scores)
    error = math.sqrt(clusters / (clusters - 1) * float(scores @ scores)) / square
    p_value = t_p_value(value / error, clusters - 1) if error > 0 else math.nan
    return Effect(value, error, p_value)


def _gaps(arm: Figures, other: Figures) -> list[float]:
    return [arm[pair] - other[pair] for pair in sorted(arm.keys() & other.keys())]


def _between(first: tuple[float, float], second: tuple[float, float], at: float) -> float:
    share = (at - first[0]) / (second[0] - first[0])
    return first[1] + share * (second[1] - first[1])
