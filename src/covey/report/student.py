"""Student's t interval for the mean of a few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from covey.evaluation.estimators import Estimate, mean


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean and its 95% t interval (Student, 1908): `mean ± t(n-1) · s / √n`, with s over n - 1.

    Assumes independent, roughly normal values; with a few seeds that is an assumption and no more. The ends are NaN for
    one value, everything is NaN for none.
    """
    middle, n = mean(values), len(values)
    if n < 2:
        return Estimate(middle, math.nan, math.nan)
    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (n - 1))
    half = student_t(n - 1) * spread / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half)


@cache
def student_t(degrees: int, coverage: float = 0.95) -> float:
    """The t for which a share `coverage` of Student's distribution lies between -t and t.

    By bisection on the angle `atan(t / √degrees)`, in which the distribution is a finite sum for whole degrees of
    freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _share_within(angle, degrees) < coverage else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _share_within(angle: float, degrees: int) -> float:
    odd = degrees % 2
    cosine = math.cos(angle)
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total
