"""Power analysis: by hand, by simulating the suggested sizes, and the coverage of a pilot's intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covey.evaluation.paired import compare, mcnemar, plan, sign_flip

REACH = 2.8015852  # 1.959964 + 0.841621: a two-sided 5% level and 80% power


def test_samples_by_hand() -> None:
    """20 problems with 4 completions each, of which B gets one more right in 8, and one fewer in 2."""
    half, better, worse = [0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]
    found = plan([half] * 20, [better] * 8 + [worse] * 2 + [half] * 10)
    # Sample by sample three differences are 0 and one is 1 or -1, which has the variance 1/4; their mean has a quarter.
    own, size = 10 * (1 / 4) / 20, 6 * 0.25 / 20
    seen = (10 * 0.25**2 - 20 * size**2) / 19
    between, room = seen - own / 4, 20 * (size / REACH) ** 2
    assert found.detectable == pytest.approx(REACH * math.sqrt(max(seen, own / 4) / 20), rel=1e-6)
    assert found.problems.value == max(0, math.ceil(max(seen, own / 4) * (REACH / size) ** 2) - 20)
    wanted = math.ceil(max(own / (room - between), own / room))
    assert found.samples.value == max(4, wanted)
    assert found.samples.low <= found.samples.value <= found.samples.high


def test_correlated_completions_have_less_noise_in_their_difference() -> None:
    """B solves what A solves, sample by sample, and one more of 4 in every fifth problem: no noise but in these."""
    rng = np.random.default_rng(0)
    a = (rng.random((100, 4)) < 0.5).astype(float)
    a[::5] = [0.0, 1.0, 0.0, 1.0]
    b = a.copy()
    b[::5, 0] = 1.0
    correlated, independent = plan(a.tolist(), b.tolist()), plan(a.tolist(), rng.permuted(b, axis=1).tolist())
    assert correlated.detectable == pytest.approx(REACH * math.sqrt(20 * 0.25 / 4 / 100 / 100), rel=1e-6)
    assert independent.detectable > 2 * correlated.detectable


def test_the_two_sides_may_have_different_numbers_of_completions() -> None:
    found = plan([[0.0, 1.0]] * 10, [[0.0, 1.0, 1.0, 1.0]] * 10)
    noise = (1 / 2 + 1 / 4) / (2 / (1 / 2 + 1 / 4))  # the two variances over the harmonic mean of 2 and 4
    assert found.detectable == pytest.approx(REACH * math.sqrt(noise / 10), rel=1e-6)


def test_the_variance_between_problems_by_hand() -> None:
    """30 problems that A gets wrong with both completions; B gets 20 right with both, and 2 with one of the two."""
    a, sure, unsure = [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]
    found = plan([a] * 30, [sure] * 20 + [unsure] * 2 + [a] * 8)
    gaps = np.array([1.0] * 20 + [0.5] * 2 + [0.0] * 8)
    between, own = gaps.var(ddof=1) - 2 * 0.25 / 30, 2 * 0.5 / 30
    assert found.detectable == pytest.approx(REACH * math.sqrt((between + own / 2) / 30), rel=1e-6)
    assert found.samples.value == 2  # the difference is detected already


def test_more_samples_do_not_help_if_only_problems_differ() -> None:
    certain = plan([[0.0, 0.0], [1.0, 1.0]] * 100, [[1.0, 1.0], [0.0, 0.0]] * 98 + [[1.0, 1.0]] * 4)
    assert certain.samples.low == math.inf


def test_undefined_is_nan() -> None:
    same = plan([[1.0], [0.0]], [[1.0], [0.0]])
    assert all(map(math.isnan, (same.detectable, same.problems.value, same.samples.value)))
    even = plan([[1.0], [0.0], [0.0]], [[0.0], [1.0], [0.0]])
    assert (even.detectable, math.isnan(even.problems.value)) == (1.0, True)
    assert math.isnan(plan([[1.0], [0.0], [0.0]], [[1.0], [1.0], [0.0]]).samples.value)
    assert math.isnan(plan([], []).detectable)


@pytest.mark.parametrize(("n", "samples", "solved"), [(50, 4, 0.6), (200, 2, 1.0)])
def test_a_pilots_intervals_cover_the_true_sizes(n: int, samples: int, solved: float) -> None:
    """Simulated pilots with known accuracies per problem: A's are beta, or 20%; B's are on average 3 points better,
    with a standard deviation of 10 points between problems. That gives the true sizes for an observed difference."""
    rng, held, tried = np.random.default_rng(n), [0, 0], 0
    noise_of_a = solved * (0.6 * 0.4 * 10 / 11) + (1 - solved) * 0.16  # the mean of p (1 - p) where a = 6 and b = 4
    noise, between = noise_of_a + _noise_of_b(solved), 0.01
    for _ in range(200):
        p = np.where(rng.random(n) < solved, rng.beta(6, 4, n), 0.2)
        q = np.clip(p + 0.03 + rng.choice([-0.1, 0.1], n), 0, 1)
        a, b = (rng.random((n, samples)) < side[:, None] for side in (p, q))
        found, size = plan(a.tolist(), b.tolist()), abs(float(b.mean() - a.mean()))
        if size == 0:
            continue
        wanted = (size / REACH) ** 2
        problems = max(0.0, (between + noise / samples) / wanted - n)
        held[0] += found.problems.low - 1 <= problems <= found.problems.high + 1
        room = n * wanted - between
        needed = max(float(samples), noise / room) if room > 0 else math.inf
        held[1] += found.samples.low - 1 <= (needed if needed <= 10_000 else math.inf) <= found.samples.high + 1
        tried += 1
    assert held[0] / tried >= 0.9
    assert held[1] / tried >= 0.9


def _noise_of_b(solved: float) -> float:
    """The mean of q (1 - q) for B, by simulation."""
    rng, n = np.random.default_rng(0), 200_000
    q = np.where(rng.random(n) < solved, rng.beta(6, 4, n), 0.2) + 0.03 + rng.choice([-0.1, 0.1], n)
    q = np.clip(q, 0, 1)
    return float((q * (1 - q)).mean())


@pytest.mark.parametrize(("up", "down"), [(0.2, 0.1), (0.1, 0.05), (0.06, 0.02)])
def test_that_many_more_problems_detect_the_difference_80_times_in_100(up: float, down: float) -> None:
    """Evaluations of the suggested size, resampled from the pilot, under the test that is used."""
    n = 1000
    first = [[0.0]] * int(up * n) + [[1.0]] * int(down * n) + [[1.0]] * (n - int(up * n) - int(down * n))
    second = [[1.0]] * int(up * n) + [[0.0]] * int(down * n) + [[1.0]] * (n - int(up * n) - int(down * n))
    found = compare(first, second)
    assert found.plan.problems.value == 0  # a thousand are more than enough
    few = compare(first[::10], second[::10])  # the same shares on a tenth of the problems
    rng = np.random.default_rng(int(1000 * up))
    counts = rng.multinomial(int(few.plan.problems.value) + n // 10, [up, down, 1 - up - down], size=2000)
    power = np.mean([mcnemar(int(gained), int(lost)) <= 0.05 for gained, lost, _ in counts])
    assert 0.76 <= power <= 0.84


def test_that_many_samples_detect_the_difference_80_times_in_100() -> None:
    """60 problems, all solved 4 points more often by B; 25 completions each, which hit these rates exactly."""
    rng = np.random.default_rng(5)
    right = rng.integers(2, 23, size=60)
    sides = [
        [rng.permutation(np.arange(25) < c).astype(float).tolist() for c in counts] for counts in (right, right + 1)
    ]
    needed = int(compare(sides[0], sides[1]).plan.samples.value)
    assert 26 <= needed <= 60
    draws = rng.binomial(needed, np.stack([right, right + 1]) / 25, size=(300, 2, 60)) / needed
    power = np.mean([sign_flip(second - first) <= 0.05 for first, second in draws])
    assert 0.74 <= power <= 0.86


def test_rewards_are_planned_for_as_numbers() -> None:
    # Gaps of 10 and -6 around 2: variance 2 · 64 / (2 - 1), so √(128 / 2) = 8 standard errors' unit; above 1.
    found = plan([[0.0], [0.0]], [[10.0], [-6.0]])
    assert found.detectable == pytest.approx((1.959963984540054 + 0.8416212335729143) * 8)
