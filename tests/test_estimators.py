"""Estimators against hand-computed numbers, published values and simulation."""

from __future__ import annotations

import math
import random

import pytest

from covey.evaluation.estimators import accuracy_estimate, mean, share_estimate, share_interval, wilson_interval


def test_wilson_against_hand_computed_values() -> None:
    # 8 of 10: centre (0.8 + 1.92073/10) / 1.384146 = 0.716740, half 0.226585 (z = 1.959964)
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.490162, abs=1e-5)
    assert high == pytest.approx(0.943318, abs=1e-5)


def test_wilson_at_the_ends_is_one_sided_and_not_empty() -> None:
    z2 = 1.959963984540054**2
    assert wilson_interval(0, 20) == (0.0, pytest.approx(z2 / (20 + z2)))
    assert wilson_interval(20, 20) == (pytest.approx(20 / (20 + z2)), 1.0)


def test_next_to_the_ends_the_bound_is_poissons() -> None:
    # P(X ≥ 1 | q) = 1 - e^-q = 5% at q = -ln 0.95; P(X ≥ 2 | q) = 1 - e^-q (1 + q) = 5% at q = 0.355362;
    # P(X ≥ 3 | q) = 5% at q = 0.817691 (Poisson tables).
    assert share_interval(1, 20) == (pytest.approx(-math.log(0.95) / 20), wilson_interval(1, 20)[1])
    assert share_interval(18, 20) == (wilson_interval(18, 20)[0], pytest.approx(1 - 0.355362 / 20, abs=1e-7))
    assert share_interval(3, 100)[0] == pytest.approx(0.00817691, abs=1e-8)
    assert share_interval(3, 50) == wilson_interval(3, 50)
    assert share_interval(0, 20) == wilson_interval(0, 20)
    # Half a success, as effective counts have them: P(1/2, q) = erf(√q) = 5%.
    assert math.erf(math.sqrt(share_interval(0.5, 20)[0] * 20)) == pytest.approx(0.05)
    assert share_interval(1e-4, 20)[0] == 0.0


def test_what_takes_k_completions_leans_further() -> None:
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
    assert all(math.isnan(bound) for bound in wilson_interval(0, 0))
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
