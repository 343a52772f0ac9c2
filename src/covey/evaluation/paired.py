"""Two sets of answers to the same problems: difference, interval, p-value, and how many problems tell them apart.

Pure functions of numbers, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from covey.evaluation.estimators import Z95, Estimate, mean, t_estimate, t_quantile

_Scores = Sequence[Sequence[float]]

_ENUMERATED = 16
"""Up to this many differing problems, all sign flips are counted."""
_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """How B differs from A, in the unit of the scores; positive means that B has more."""

    problems: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    gained: tuple[int, ...]
    """Positions of the problems on which B is right more often than A."""
    lost: tuple[int, ...]
    plan: Plan
    """The sample sizes that would detect a difference of this size."""


def compare(first: _Scores, second: _Scores, seed: int = 0) -> Comparison:
    """Compare two models problem by problem.

    With one completion each, right (1) or wrong (0): the interval of Bonett & Price (2012), which holds at small counts
    too, and McNemar's exact test (1947). Else: Student's t interval of the mean difference, and a sign-flip test, over
    all flips or 20,000 seeded ones.

    Args:
        first: for each problem, A's score on each of its completions: 1 for right, 0 for wrong, or a reward.
        second: B's, for the same problems in the same order.
        seed: of the sign flips that are drawn.
    """
    a, b = [mean(scores) for scores in first], [mean(scores) for scores in second]
    gaps = np.subtract(b, a)
    n = len(gaps)
    gained, lost = (tuple(map(int, np.flatnonzero(side))) for side in (gaps > 0, gaps < 0))
    difference = float(gaps.mean()) if n else math.nan
    graded = all(score in (0.0, 1.0) for scores in (*first, *second) for score in scores)
    if graded and all(len(scores) == 1 for scores in (*first, *second)):
        low, high = bonett_price(len(gained), len(lost), n)
        p_value = mcnemar(len(gained), len(lost))
    else:
        interval, p_value = t_estimate(gaps.tolist()), sign_flip(gaps, seed)
        low, high = (max(-1.0, interval.low), min(1.0, interval.high)) if graded else (interval.low, interval.high)
    return Comparison(n, mean(a), mean(b), difference, low, high, p_value, gained, lost, plan(first, second))


def bonett_price(gained: int, lost: int, problems: int) -> tuple[float, float]:
    """95% interval of a difference of paired proportions: Wald's with one problem added to each kind of change."""
    if problems == 0:
        return math.nan, math.nan
    up, down, n = (gained + 1) / (problems + 2), (lost + 1) / (problems + 2), problems + 2
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / n)
    return max(-1.0, up - down - half), min(1.0, up - down + half)


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact test, two-sided: the probability of a split at least as uneven if each change is a coin toss."""
    n, fewer = gained + lost, min(gained, lost)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(fewer + 1)) / (1 << n))


def sign_flip(gaps: Sequence[float] | np.ndarray, seed: int = 0) -> float:
    """The probability, under random signs, of a sum of differences at least as far from 0; two-sided.

    All flips are counted for up to 16 differences that are not 0; else 20,000 are drawn, and the observed one is
    added, so that the value is never 0 (Phipson & Smyth 2010).
    """
    values = np.asarray(gaps, dtype=float)
    values = values[values != 0]
    if values.size == 0:
        return 1.0
    observed = abs(float(values.sum())) - 1e-12 * values.size  # rounding must not make an equal sum look smaller
    if values.size <= _ENUMERATED:
        bits = (np.arange(2**values.size)[:, None] >> np.arange(values.size)) & 1
        reached = int((np.abs((2 * bits - 1) @ values) >= observed).sum())
        return reached / (1 << int(values.size))
    rng = np.random.default_rng(seed)
    reached = 0
    for _ in range(_DRAWS // 1000):
        signs = rng.integers(0, 2, size=(1000, values.size)) * 2 - 1
        reached += int((np.abs(signs @ values) >= observed).sum())
    return float(reached + 1) / (_DRAWS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for multiple tests (Holm 1979): the family-wise error rate stays below the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = highest
    return corrected


_REACH = Z95 + 0.8416212335729143
"""Standard errors between a detectable difference and 0: a two-sided 5% level and 80% power (one-sided quantile)."""
_MOST_SAMPLES = 10_000
"""If more completions per problem than this are needed, the result is infinite."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would detect a difference of the observed size, at 80% power and a two-sided 5% level.

    The intervals (95%) cover the uncertainty of the variance between problems and completions. They do not cover that
    the true difference may differ from the observed one; for that see `detectable`.
    """

    detectable: float
    """The smallest true difference that these problems and completions detect, in the unit of the scores; NaN if all
    problems changed alike."""
    problems: Estimate
    """Further problems, with as many completions each; NaN for no difference."""
    samples: Estimate
    """Completions of each of these problems; infinite if no number suffices, NaN if there is one completion each, which
    does not show the variance within a problem."""


def plan(first: _Scores, second: _Scores) -> Plan:
    """Plan from a pilot.

    Args:
        first: for each problem, A's score on each of its completions: 1 for right, 0 for wrong, or a reward.
        second: B's, for the same problems in the same order.
    """
    n, undefined = len(first), Estimate(math.nan, math.nan, math.nan)
    if n < 2:
        return Plan(math.nan, undefined, undefined)
    gaps = np.array([mean(b) - mean(a) for a, b in zip(first, second, strict=True)])
    squares = (gaps - gaps.mean()) ** 2 * n / (n - 1)  # their mean is the variance
    counts = [(len(a), len(b)) for a, b in zip(first, second, strict=True)]
    several = min(map(min, counts)) > 1
    own = np.array([_own(a, b) for a, b in zip(first, second, strict=True)]) if several else np.zeros(n)
    # The variance of a problem's difference due to sampling; with unequal counts the harmonic mean applies.
    noise = own / np.array([2 / (1 / a + 1 / b) for a, b in counts])
    variance = max(float(squares.mean()), float(noise.mean()))
    if variance < 1e-12:
        return Plan(math.nan, undefined, undefined)
    graded = all(score in (0.0, 1.0) for scores in (*first, *second) for score in scores)
    # McNemar's exact test is discrete: the usual continuity correction costs one problem.
    lost = 1 if graded and max(map(max, counts)) == 1 else 0
    detectable = _REACH * math.sqrt(variance / n) + lost / n
    detectable = min(1.0, detectable) if graded else detectable
    size = abs(float(gaps.mean()))
    if size < 1e-12:
        return Plan(detectable, undefined, undefined)
    spread = t_estimate(squares.tolist())
    error = spread.high - spread.value
    factor = math.exp(min(error / variance, 50.0))  # on a log scale: a variance is positive and skewed
    problems = [max(0, _problems(size, variance * by, lost) - n) for by in (1.0, 1 / factor, factor)]
    samples = undefined
    if several:
        samples = _samples(squares - noise, own, n * (size / _REACH) ** 2, min(map(min, counts)))
    return Plan(detectable, Estimate(*map(float, problems)), samples)


def _own(first: Sequence[float], second: Sequence[float]) -> float:
    """The variance of the difference of one completion of A and one of B, of one problem.

    With equal counts it is computed from the differences sample by sample: two evaluations with one seed use the same
    random numbers, and correlated completions have less noise in their difference.
    """
    if len(first) == len(second):
        return _variance([b - a for a, b in zip(first, second, strict=True)])
    return _variance(first) + _variance(second)


def _variance(scores: Sequence[float]) -> float:
    middle = mean(scores)
    return math.fsum((score - middle) ** 2 for score in scores) / (len(scores) - 1)


def _problems(size: float, variance: float, lost: int) -> int:
    """The fewest problems N with `N · size - lost ≥ reach · √(N · variance)`."""
    reach = _REACH * math.sqrt(variance)
    return math.ceil(((reach + math.sqrt(reach**2 + 4 * size * lost)) / (2 * size)) ** 2)


def _samples(between: np.ndarray, own: np.ndarray, wanted: float, least: int) -> Estimate:
    """Completions per problem that bring the variance of the problems' differences down to `wanted`.

    With s completions each it is the mean over problems of `between + own / s`, and never below that of `own / s`. The
    variance between problems is the observed one less the sampling noise, so its estimate may be too low or too high:
    the interval holds the numbers at which the mean does not differ significantly from `wanted` (as in Fieller 1954).
    Of each problem, `between` is the squared deviation of its difference from the mean, less its noise, and `own` the
    variance of the difference of one completion of A and one of B; there are `least` completions already.
    """
    n = len(own)
    (spread, both), (_, noise) = (np.cov(between, own) / n).tolist()  # of the means
    middle, mean_own, t = float(between.mean()), float(own.mean()), t_quantile(n - 1)

    def enough(shift: float) -> Callable[[float], bool]:
        def reached(samples: float) -> bool:
            error = math.sqrt(max(0.0, spread + 2 * both / samples + noise / samples**2))
            seen = middle + mean_own / samples + shift * error
            return max(seen, (mean_own + shift * math.sqrt(noise)) / samples) <= wanted

        return reached

    return Estimate(*(_fewest(enough(shift), least) for shift in (0.0, -t, t)))


def _fewest(enough: Callable[[float], bool], least: int) -> float:
    """The smallest integer from `least` on that is enough; infinite if there is none."""
    if enough(least):
        return float(least)
    below, above = least, _MOST_SAMPLES
    if not enough(above):
        return math.inf
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if enough(middle) else (middle, above)
    return float(above)
