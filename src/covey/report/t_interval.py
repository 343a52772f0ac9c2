"""Student's t interval for the mean of a few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from covey.evaluation.estimators import Estimate, mean, t_quantile


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean and its 95% t interval (Student, 1908): `mean ± t(n-1) · s / √n`, with s over n - 1.

    Assumes independent, roughly normal values, which a few seeds cannot verify. The ends are NaN for one value,
    everything is NaN for none.
    """
    middle, n = mean(values), len(values)
    if n < 2:
        return Estimate(middle, math.nan, math.nan)
    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (n - 1))
    half = t_quantile(n - 1) * spread / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half)
