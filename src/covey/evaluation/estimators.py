"""Figures per problem (pass@k, maj@k, distinct@k) and estimates with confidence intervals over problems.

Pure functions of numbers; undefined is NaN.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from covey.errors import ConfigError

_MOST_SUBSETS = 2000
"""Most subsets that are enumerated; if there are more, this many are drawn."""


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The probability that at least one of k completions, drawn without replacement, is right.

    `1 - C(n-c, k) / C(n, k)`, the unbiased estimate of Chen et al. (2021, equation 1), as a product of ratios so that
    no binomial coefficient overflows.

    Args:
        samples: completions of the problem, n.
        right: how many of them are right, c.
        k: how many are drawn.

    Raises:
        ConfigError: k is below 1 or above the samples.
    """
    check_k(samples, k)
    if samples - right < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / n for n in range(samples - right + 1, samples + 1))


def majority_at_k(answers: Sequence[str | None], right: Sequence[bool], k: int, seed: int = 0) -> float:
    """The probability that the most frequent answer among k completions, drawn without replacement, is right.

    Ties are broken at random, and the value is the mean over that. Completions without an answer do not vote; without
    votes the majority is wrong. Up to 2,000 subsets are enumerated; else 2,000 are drawn.

    Args:
        answers: the answer of each completion, equal texts are the same vote; None for none.
        right: whether each is right. Equal answers that were graded differently count by their mean.
        k: how many are drawn.
        seed: of the subsets that are drawn.

    Raises:
        ConfigError: k is below 1 or above the samples.
    """
    n = len(answers)
    check_k(n, k)
    votes = Counter(answer for answer in answers if answer is not None)
    credit = {
        answer: sum(ok for given, ok in zip(answers, right, strict=True) if given == answer) / count
        for answer, count in votes.items()
    }
    subsets = _subsets(n, k, seed)
    cast = np.array([[given == answer for answer in credit] for given in answers], dtype=np.int64).reshape(n, -1)
    counts = cast[subsets].sum(axis=1)
    counts = counts[(counts > 0).any(axis=1)]  # without votes, 0
    first = counts == counts.max(axis=1, keepdims=True, initial=0)
    shares = (first @ np.array(list(credit.values()))) / first.sum(axis=1)
    return math.fsum(shares) / len(subsets)


def distinct_at_k(counts: Sequence[int], n: int, k: int) -> float:
    """The expected number of different right answers among k completions, drawn without replacement from n.

    `Σ_m 1 - C(n - c_m, k) / C(n, k)` over the modes m: each term is the unbiased estimate of the probability that the
    mode is among k new completions (Chen et al. 2021, equation 1), so their sum is unbiased too.

    Args:
        counts: right completions of each mode, c_m.
        n: completions of the problem.
        k: how many are drawn.

    Raises:
        ConfigError: k is below 1 or above n, or the counts do not fit n.
    """
    check_k(n, k)
    if any(count < 0 for count in counts) or sum(counts) > n:
        raise ConfigError(f"{list(counts)} cannot be right completions of each mode among {n} completions.")
    return math.fsum(_met(count, n, k) for count in counts)


def coverage_at_k(counts: Sequence[int], n: int, k: int, modes: int) -> float:
    """The expected share of a problem's right answers among k completions: `distinct_at_k` over their number.

    Args:
        modes: different right answers that the problem has; for 0 the share is NaN.

    Raises:
        ConfigError: as in `distinct_at_k`, or there are more modes in `counts`.
    """
    found = distinct_at_k(counts, n, k)
    if sum(count > 0 for count in counts) > modes:
        raise ConfigError(f"{list(counts)} are right completions of more modes than the {modes} that there are.")
    return found / modes if modes else math.nan


def chance_at_k(chances: Sequence[float], k: int) -> tuple[float, float]:
    """pass@k and distinct@k of k independent random answers: `1 - (1 - Σ p_m)^k` and `Σ_m 1 - (1 - p_m)^k`.

    Args:
        chances: the probability of each right answer, p_m.
        k: random answers.
    """
    return _once_in(math.fsum(chances), k), math.fsum(_once_in(chance, k) for chance in chances)


@lru_cache(maxsize=64)
def _subsets(n: int, k: int, seed: int) -> NDArray[np.int64]:
    """All subsets of k of n completions, one a row, or `_MOST_SUBSETS` random ones where there are more."""
    if math.comb(n, k) <= _MOST_SUBSETS:
        return np.array(list(combinations(range(n), k)))
    rng = random.Random(seed)
    return np.array([rng.sample(range(n), k) for _ in range(_MOST_SUBSETS)])


def _met(count: int, n: int, k: int) -> float:
    """`1 - C(n - count, k) / C(n, k)`, without cancellation: the logarithms of the smaller number of factors."""
    if n - count < k:
        return 1.0
    fewer, more = min(count, k), max(count, k)
    return -math.expm1(math.fsum(math.log1p(-more / (n - i)) for i in range(fewer)))


def _once_in(chance: float, k: int) -> float:
    return 1.0 if chance >= 1 else -math.expm1(k * math.log1p(-chance))


def powers_up_to(samples: int) -> list[int]:
    """1, 2, 4, … and the number of samples itself."""
    ks = [1 << power for power in range(samples.bit_length()) if 1 << power <= samples]
    return ks if ks and ks[-1] == samples else [*ks, samples]


def check_k(samples: int, k: int) -> None:
    """Raise a `ConfigError` if k completions cannot be drawn."""
    if not 1 <= k <= samples:
        raise ConfigError(
            f"k={k} is not possible for pass@k, maj@k and the like with {samples} completions of a problem: k must be "
            f"between 1 and {samples}. Sample more with evaluation.num_samples={max(k, 1)}."
        )


Z95 = 1.959963984540054  # two-sided 95% point of the standard normal

_RESAMPLES = 2000
_BOOTSTRAP_FROM = 8
"""Number of problems from which a mean is bootstrapped; fewer show too little of the distribution."""

_WIDER = 0.58
"""Increase of the quantile of a share's interval for a single problem; it decays as 1 / problems. Chosen by
enumeration: with less, some true shares of a few problems are covered less than 93% of the time; with more, those of
ten problems more than 97% on average."""

_PRIOR = 0.09
"""Prior added to the variance between problems. Where hardly any problem is right (or wrong), the data say little about
the correlation within a problem; this assumes full correlation, and fades with more data. Chosen by simulation
(`scripts/interval_coverage.py`): with less, extreme shares are covered too seldom; with more, problems of almost equal
difficulty too often."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95% confidence interval."""

    value: float
    low: float
    high: float


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN for no values."""
    return math.fsum(values) / len(values) if values else math.nan


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean, with the variance over n - 1; NaN for fewer than two values."""
    n = len(values)
    if n < 2:
        return math.nan
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (n - 1) / n)


def t_estimate(values: Sequence[float]) -> Estimate:
    """The mean and its 95% t interval (Student 1908): `mean ± t(n-1) · s / √n`, with s over n - 1.

    Assumes independent, roughly normal values. The ends are NaN for one value, everything is NaN for none.
    """
    centre, half = mean(values), t_quantile(len(values) - 1) * standard_error(values)
    return Estimate(centre, centre - half, centre + half)


def share_interval(successes: float, trials: float) -> tuple[float, float]:
    """Agresti and Coull's interval (1998) for a proportion, 95%, a little wider for few trials.

    The normal interval after adding z²/2 successes and z²/2 failures. It covers every true share at least
    92% of the time, and 93% from 7 trials on; Wilson's, of the same centre, falls to 83% near 0 and 1.

    Args:
        successes: from 0 to the trials; may be an effective number, so need not be an integer.
        trials: likewise; for 0 the interval is NaN.
    """
    if trials <= 0:
        return math.nan, math.nan
    added = Z95**2
    p = (successes + added / 2) / (trials + added)
    half = (Z95 + _WIDER / trials) * math.sqrt(p * (1 - p) / (trials + added))
    return max(0.0, p - half), min(1.0, p + half)


def accuracy_estimate(right_by_problem: Sequence[Sequence[bool]]) -> Estimate:
    """Accuracy over problems with one or more completions each, and its 95% interval clustered by problem.

    Every problem has the same weight. Completions of one problem are not independent: see `share_estimate`.

    Args:
        right_by_problem: for each problem, whether each of its completions was right. Problems without completions
            are left out.
    """
    shares = [mean([float(right) for right in problem]) for problem in right_by_problem if problem]
    return share_estimate(shares, sum(map(len, right_by_problem)))


@cache
def t_quantile(degrees: int) -> float:
    """The two-sided 95% point of Student's t: 0.95 of it lies between -t and t. Infinite below 1 degree of freedom.

    Up to 100 degrees by bisection on the angle `atan(t / √degrees)`, in which the distribution is a finite sum for
    whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4); above, where both agree to 2e-8, by the
    expansion in 1/degrees (26.7.5).
    """
    if degrees < 1:
        return math.inf
    if degrees > 100:
        z = Z95
        terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
        return z + math.fsum(term / degrees ** (power + 1) for power, term in enumerate(terms))
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _share_within(angle, degrees) < 0.95 else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def t_p_value(t: float, degrees: int) -> float:
    """The two-sided p-value of Student's t, P(|T| ≥ |t|)."""
    return 1.0 - _share_within(math.atan(abs(t) / math.sqrt(degrees)), degrees)


def _share_within(angle: float, degrees: int) -> float:
    odd = degrees % 2
    cosine = math.cos(angle)
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def share_estimate(shares: Sequence[float], completions: int, k: int = 1) -> Estimate:
    """The mean of one value in [0, 1] per problem, and its interval over problems.

    With one completion per problem this is `share_interval` of the problems. Else it is that of the effective number of
    completions `p(1-p) / var(mean)` (Kish 1965), with the variance of the problems' values (cluster-robust), clipped to
    between the numbers of problems and of completions. Near 0 and 1 the variance is shrunk towards that of fully
    correlated completions. No quantile of Student's t: with it 10 problems were covered 97% to 99% of the time.

    Args:
        shares: a value for each problem.
        completions: their number over all problems.
        k: completions that one value is about, as in pass@k. The larger, the less the values show how problems differ,
            so the prior grows with √k.
    """
    n = len(shares)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan)
    p = min(1.0, max(0.0, mean(shares)))
    effective = float(n)
    if completions > n > 1:
        most = n * p * (1 - p)  # the variance of shares that are all 0 or 1
        spread = math.fsum((share - p) ** 2 for share in shares) * n / (n - 1)
        if most > 0:
            prior = _PRIOR * math.sqrt(k)
            effective = n * (most + prior) / (spread + prior)
        effective = min(max(effective, float(n)), float(completions))
    return Estimate(p, *share_interval(p * effective, effective))


def mean_estimate(values: Sequence[float], seed: int = 0, *, lowest: float = -math.inf) -> Estimate:
    """The mean of one value per problem, and its interval over problems; no interval for a single problem.

    Student's t; from 8 problems on also a bootstrap-t with 2,000 resamples (Efron 1979), taking the outer bounds.
    For skewed values such as lengths, the first is too low on both sides, and the second too narrow on the short side.

    Args:
        values: one for each problem.
        seed: of the resamples.
        lowest: lower bound of the values, and so of the interval.
    """
    found = t_estimate(values)
    if len(values) < 2:
        return found
    centre, low, high = found.value, found.low, found.high
    error = standard_error(values)
    if len(values) >= _BOOTSTRAP_FROM and error > 0:
        down, up = _bootstrap_t(np.asarray(values, dtype=float), centre, seed) or (0.0, 0.0)
        low, high = min(low, centre - down * error), max(high, centre + up * error)
    return Estimate(centre, max(lowest, low), high)


def ratio_estimate(parts: Sequence[float], wholes: Sequence[float]) -> Estimate:
    """The sum of the parts over the sum of the wholes, one pair for each problem, and its 95% interval over problems.

    Student's t of the linearised ratio (Cochran 1977, section 6.3): the residuals `part - ratio · whole`, over the mean
    whole. NaN without any whole.
    """
    total = math.fsum(wholes)
    if not total:
        return Estimate(math.nan, math.nan, math.nan)
    ratio = math.fsum(parts) / total
    centre = total / len(wholes)
    spread = t_estimate([(part - ratio * whole) / centre for part, whole in zip(parts, wholes, strict=True)])
    return Estimate(ratio, ratio + spread.low - spread.value, ratio + spread.high - spread.value)


def _bootstrap_t(values: np.ndarray, centre: float, seed: int) -> tuple[float, float] | None:
    """Standard errors from the mean to the bounds, down and up; None if too few resamples have any variance."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(_RESAMPLES // 100):  # in chunks, to save memory with many problems
        resampled = values[rng.integers(0, len(values), size=(100, len(values)))]
        error = resampled.std(axis=1, ddof=1) / math.sqrt(len(values))
        spread = error > 1e-12 * abs(centre)
        drawn.append((resampled.mean(axis=1)[spread] - centre) / error[spread])
    found = np.concatenate(drawn)
    if len(found) < _RESAMPLES / 2:
        return None
    low, high = np.quantile(found, (0.025, 0.975))
    return float(high), float(-low)
