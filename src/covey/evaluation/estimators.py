"""Estimates with honest intervals. Pure functions of numbers; undefined is NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054  # two-sided 95% point of the standard normal

_RESAMPLES = 2000
_BOOTSTRAP_FROM = 8
"""Problems from which on a mean is bootstrapped; fewer show too little of the shape."""

_WIDER = 0.58
"""What the quantile of a share's interval gains for a single problem; it fades as 1 / problems. Chosen by counting
every outcome: with less, some true shares of a few problems are covered less than 93% of the time; with more, those of
ten more than 97% in the mean."""

_PRIOR = 0.09
"""Spread that is added to what the problems show. Where hardly any problem is right (or wrong) they show too little of
how alike the completions of one problem are; this leans towards all alike, and fades where there is more to see. Chosen
by simulation (`scripts/interval_coverage.py`): with less, extreme shares are covered too seldom; with more, problems of
almost equal difficulty too often."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95% confidence interval."""

    value: float
    low: float
    high: float


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN for no values."""
    return math.fsum(values) / len(values) if values else math.nan


def share_interval(successes: float, trials: float) -> tuple[float, float]:
    """Agresti and Coull's interval (1998) for a proportion, 95%, a little wider for few trials.

    The normal interval after half of z² successes and as many failures were added. It holds every true share at least
    92% of the time, and 93% from 7 trials on; Wilson's, of the same centre, falls to 83% near 0 and 1.

    Args:
        successes: from 0 to the trials; may be an effective number, and so need not be whole.
        trials: likewise; the interval is NaN for none.
    """
    if trials <= 0:
        return math.nan, math.nan
    added = Z95**2
    p = (successes + added / 2) / (trials + added)
    half = (Z95 + _WIDER / trials) * math.sqrt(p * (1 - p) / (trials + added))
    return max(0.0, p - half), min(1.0, p + half)


def accuracy_estimate(right_by_problem: Sequence[Sequence[bool]]) -> Estimate:
    """Accuracy over problems with one or more completions each, and its 95% interval clustered by problem.

    Every problem counts alike. Completions of one problem are not independent: see `share_estimate`.

    Args:
        right_by_problem: for each problem, whether each of its completions was right. Problems without a completion are
            left out.
    """
    shares = [mean([float(right) for right in problem]) for problem in right_by_problem if problem]
    return share_estimate(shares, sum(map(len, right_by_problem)))


def t_quantile(degrees: int) -> float:
    """The two-sided 95% point of Student's t, by its expansion in 1/degrees (Abramowitz & Stegun 26.7.5).

    Within 0.002 from 5 degrees on; infinite below 1. The first two are put in by hand, where the expansion fails.
    """
    if degrees < 1:
        return math.inf
    if degrees <= 4:
        return (12.7062, 4.3027, 3.1824, 2.7764)[degrees - 1]
    z, v = Z95, float(degrees)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / v ** (power + 1) for power, term in enumerate(terms))


def share_estimate(shares: Sequence[float], completions: int, k: int = 1) -> Estimate:
    """The mean of one value in [0, 1] per problem, and its interval over problems.

    With one completion per problem that is `share_interval` of the problems. Else it is that of the effective number of
    completions `p(1-p) / var(mean)` (Kish 1965), the variance being that of the problems' values (robust to any
    likeness within a problem), kept between the problems and the completions. Near 0 and 1 the variance leans towards
    that of completions that are all alike. No quantile of Student's t: the two bounds say much of the variance already,
    and with it 10 problems were covered 97% to 99% of the time.

    Args:
        shares: a value for each problem.
        completions: how many completions they come from.
        k: how many of a problem's completions its value is about. The more they are, the less shows of how the problems
            differ, so the variance leans further, by the root of k.
    """
    n = len(shares)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan)
    p = min(1.0, max(0.0, mean(shares)))
    effective = float(n)
    if completions > n > 1:
        most = n * p * (1 - p)  # the spread of shares that are all 0 or 1
        spread = math.fsum((share - p) ** 2 for share in shares) * n / (n - 1)
        if most > 0:
            lean = _PRIOR * math.sqrt(k)
            effective = n * (most + lean) / (spread + lean)
        effective = min(max(effective, float(n)), float(completions))
    return Estimate(p, *share_interval(p * effective, effective))


def mean_estimate(values: Sequence[float], seed: int = 0, *, lowest: float = -math.inf) -> Estimate:
    """The mean of one value per problem, and its interval over problems; no interval for a single problem.

    Student's t; from 8 problems on a bootstrap-t with 2,000 resamples (Efron 1979) as well, and of each bound the one
    that is further out. Of what is skewed, as lengths are, the first is too low on both sides, the second too narrow
    on the short one.

    Args:
        values: one for each problem.
        seed: fixes the resamples.
        lowest: no value can be below this, so neither is the interval.
    """
    n = len(values)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan)
    centre = mean(values)
    if n == 1:
        return Estimate(centre, math.nan, math.nan)
    error = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (n - 1) / n)
    lower = upper = t_quantile(n - 1)
    if n >= _BOOTSTRAP_FROM and error > 0:
        down, up = _bootstrap_t(np.asarray(values, dtype=float), centre, seed) or (lower, upper)
        lower, upper = max(lower, down), max(upper, up)
    return Estimate(centre, max(lowest, centre - lower * error), centre + upper * error)


def _bootstrap_t(values: np.ndarray, centre: float, seed: int) -> tuple[float, float] | None:
    """How many standard errors the interval reaches down and up; None where too few resamples have a spread."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(_RESAMPLES // 100):  # in parts, so that many problems need little memory
        resampled = values[rng.integers(0, len(values), size=(100, len(values)))]
        error = resampled.std(axis=1, ddof=1) / math.sqrt(len(values))
        spread = error > 1e-12 * abs(centre)
        drawn.append((resampled.mean(axis=1)[spread] - centre) / error[spread])
    found = np.concatenate(drawn)
    if len(found) < _RESAMPLES / 2:
        return None
    low, high = np.quantile(found, (0.025, 0.975))
    return float(high), float(-low)
