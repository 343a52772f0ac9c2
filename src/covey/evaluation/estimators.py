"""Estimates with honest intervals. Pure functions of numbers; undefined is NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z95 = 1.959963984540054  # two-sided 95% point of the standard normal


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95% confidence interval."""

    value: float
    low: float
    high: float


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN for no values."""
    return math.fsum(values) / len(values) if values else math.nan


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """Wilson's score interval (1927) for a proportion, 95%.

    Holds its coverage near 0 and 1, where the usual normal interval collapses. `trials` may be an effective sample size
    and so need not be whole. NaN for no trials.
    """
    if trials <= 0:
        return math.nan, math.nan
    p, z2 = successes / trials, _Z95**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 / (1 + z2 / trials) * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    # At the ends the bound is exactly 0 or 1; rounding must not say otherwise.
    return (0.0 if p == 0 else max(0.0, centre - half)), (1.0 if p == 1 else min(1.0, centre + half))


def accuracy_estimate(right_by_problem: Sequence[Sequence[bool]]) -> Estimate:
    """Accuracy over problems with one or more completions each, and its 95% interval clustered by problem.

    Every problem counts alike. Completions of one problem are not independent, so Wilson's interval is taken at the
    effective sample size `p(1-p) / var(mean)` (Kish's design effect), with the variance of the mean estimated between
    problems; with one completion per problem that is Wilson's interval over the problems. The effective size is kept
    between the number of problems and the number of completions.

    Args:
        right_by_problem: for each problem, whether each of its completions was right. Problems without a completion are
            left out.
    """
    shares = [mean([float(right) for right in problem]) for problem in right_by_problem if problem]
    n = len(shares)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan)
    p = mean(shares)
    completions = sum(map(len, right_by_problem))
    effective = float(n)
    if completions > n > 1:
        variance_of_mean = math.fsum((share - p) ** 2 for share in shares) / (n - 1) / n
        effective = p * (1 - p) / variance_of_mean if variance_of_mean > 0 else float(n)
        effective = min(max(effective, float(n)), float(completions))
    low, high = wilson_interval(p * effective, effective)
    return Estimate(p, low, high)
