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

_RARE = 0.05
"""One-sided level of the bound next to 0 and 1 (Brown, Cai & DasGupta 2001, section 4.1.1)."""

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


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """Wilson's score interval (1927) for a proportion, 95%.

    Holds its coverage near 0 and 1, where the usual normal interval collapses. `trials` may be an effective sample size
    and so need not be whole. NaN for no trials.
    """
    if trials <= 0:
        return math.nan, math.nan
    p, z2 = successes / trials, Z95**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    # At the ends the bound is exactly 0 or 1; rounding must not say otherwise.
    return (0.0 if p == 0 else max(0.0, centre - half)), (1.0 if p == 1 else min(1.0, centre + half))


def share_interval(successes: float, trials: float) -> tuple[float, float]:
    """The modified Wilson interval (Brown, Cai & DasGupta 2001, section 4.1.1) for a proportion, 95%.

    Wilson's bound towards the near end is too bold where hardly anything was right (or wrong): over a rare event's true
    shares its coverage falls to 83%. Up to 2 successes (3 from 51 trials on) the lower bound is therefore Poisson's,
    `q / trials` with `P(X ≥ successes | q) = 5%`, where that is lower; up to 2 or 3 failures the upper one likewise.
    Both counts may be effective ones and so need not be whole. NaN for no trials.
    """
    low, high = wilson_interval(successes, trials)
    failures, most = trials - successes, 2 if trials <= 50 else 3
    if 0 < successes <= most:
        low = min(low, _poisson_bound(successes) / trials)
    if 0 < failures <= most:
        high = max(high, 1 - _poisson_bound(failures) / trials)
    return low, high


def _poisson_bound(count: float) -> float:
    """The mean q of a Poisson variable with `P(X ≥ count) = 5%`: the regularised lower incomplete gamma function
    `P(count, q)`, also for a count that is not whole, solved by Newton's method on its logarithm."""
    scale = math.lgamma(count + 1)
    q = math.exp((math.log(_RARE) + scale) / count)  # what leaves out e^-q: too low, and Newton's steps go up from it
    for _ in range(50):
        if q == 0:
            break
        term = total = 1.0  # P = q^count e^-q / Γ(count + 1) · Σ q^k / ((count + 1) … (count + k))
        k = 0
        while term > 1e-17 * total:
            k += 1
            term *= q / (count + k)
            total += term
        log_chance = count * math.log(q) - q - scale + math.log(total)
        step = (math.log(_RARE) - log_chance) * total * q / count  # the slope of the logarithm is count / (q · total)
        q += step
        if step < 1e-13 * q:
            break
    return q


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

    From 8 problems on a bootstrap-t with 2,000 resamples (Efron 1979): it follows the skewness that lengths have, where
    Student's t, which is taken below 8, is too low on both sides.

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
        lower, upper = _bootstrap_t(np.asarray(values, dtype=float), centre, seed) or (lower, upper)
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
