"""Estimators against hand-computed numbers, published values and simulation."""

from __future__ import annotations

import math
import random

import pytest

from covey.evaluation.estimators import accuracy_estimate, mean, share_estimate, share_interval


def test_a_share_against_hand_computed_values() -> None:
    # z² = 3.841459. 8 of 10: centre (8 + 1.920729) / 13.841459 = 0.716740, its standard error
    # sqrt(0.716740 · 0.283260 / 13.841459) = 0.121111, times 1.959964 + 0.58 / 10 = 0.244398.
    assert share_interval(8, 10) == pytest.approx((0.472343, 0.961137), abs=1e-5)
    # 40 of 100: centre 41.920729 / 103.841459 = 0.403699; 0.048148 · (1.959964 + 0.0058) = 0.094647.
    assert share_interval(40, 100) == pytest.approx((0.309052, 0.498347), abs=1e-5)


def test_at_the_ends_a_share_is_bounded_on_one_side_and_not_empty() -> None:
    # 0 of 20: centre 1.920729 / 23.841459 = 0.080563, standard error 0.055739, times 1.988964 = 0.110863.
    assert share_interval(0, 20) == (0.0, pytest.approx(0.191426, abs=1e-5))
    assert share_interval(20, 20) == (pytest.approx(1 - 0.191426, abs=1e-5), 1.0)
    for right in range(21):  # what is right and what is wrong change places
        low, high = share_interval(right, 20)
        assert low <= right / 20 <= high
        assert share_interval(20 - right, 20) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_the_prior_grows_with_k() -> None:
    # Of 20 problems half at 0.5 and half at 0.75: p(1-p) n = 4.6875, spread 10 · 2 · (1/8)² · 20/19 = 0.328947.
    shares = [0.5, 0.75] * 10
    for k in (1, 4):
        lean = 0.09 * k**0.5
        effective = 20 * (4.6875 + lean) / (0.328947 + lean)
        estimate = share_estimate(shares, 400, k)
        assert (estimate.low, estimate.high) == pytest.approx(share_interval(0.625 * effective, effective), abs=1e-6)
    assert share_estimate(shares, 80).low == share_interval(50, 80)[0]  # no more than there are completions


def test_undefined_is_nan() -> None:
    assert math.isnan(mean([]))
    assert all(math.isnan(bound) for bound in share_interval(0, 0))
    assert math.isnan(accuracy_estimate([]).value)


def test_one_completion_per_problem_is_the_interval_of_the_problems() -> None:
    estimate = accuracy_estimate([[True]] * 8 + [[False]] * 2)
    assert (estimate.value, estimate.low, estimate.high) == (0.8, *share_interval(8, 10))


def test_copies_of_a_completion_add_no_certainty() -> None:
    single = accuracy_estimate([[True]] * 8 + [[False]] * 2)
    copied = accuracy_estimate([[True] * 16] * 8 + [[False] * 16] * 2)
    assert copied == single


def test_independent_completions_do_add_certainty() -> None:
    rng = random.Random(0)
    problems = [[rng.random() < 0.5 for _ in range(16)] for _ in range(50)]
    clustered, first_only = accuracy_estimate(problems), accuracy_estimate([p[:1] for p in problems])
    assert clustered.high - clustered.low < 0.5 * (first_only.high - first_only.low)


@pytest.mark.parametrize(("n", "samples", "p"), [(30, 1, 0.5), (30, 1, 0.05), (200, 1, 0.9), (60, 4, 0.5)])
def test_coverage_by_simulation(n: int, samples: int, p: float) -> None:
    """2,000 seeded draws; problems differ in difficulty (a beta mixture with mean p)."""
    rng = random.Random(f"{n}-{samples}-{p}")
    covered = 0
    for _ in range(2000):
        chances = [rng.betavariate(4 * p, 4 * (1 - p)) for _ in range(n)]
        estimate = accuracy_estimate([[rng.random() < chance for _ in range(samples)] for chance in chances])
        covered += estimate.low <= p <= estimate.high
    assert 0.92 <= covered / 2000 <= 0.985
