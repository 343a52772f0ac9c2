"""Two sets of answers to the same problems: difference, interval, p-value, and the sample size to detect it.

Pure functions of numbers, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covey.evaluation.estimators import Z95, mean, t_estimate
from covey.evaluation.planning import Plan, plan

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


def compare(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], seed: int = 0) -> Comparison:
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
