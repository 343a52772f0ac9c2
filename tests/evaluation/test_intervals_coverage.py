"""How often the 95% intervals hold the true value, by simulation with fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
import pytest

from covey.evaluation.estimators import Estimate, mean_estimate, share_interval, t_p_value, t_quantile
from covey.evaluation.paired import bonett_price
from load_scripts import load_script

DRAWS = 2000


coverage = load_script("scripts/interval_coverage.py")


SHARES = np.linspace(0.002, 0.998, 500)


def exact_coverage(n: int) -> np.ndarray:
    """Exact, not simulated: the probability that the interval covers the true share, for each of `SHARES`."""
    covered = np.zeros_like(SHARES)
    for right in range(n + 1):
        low, high = share_interval(right, n)
        covered += comb(n, right) * SHARES**right * (1 - SHARES) ** (n - right) * ((low <= SHARES) & (high >= SHARES))
    return covered


@pytest.mark.parametrize(("n", "least"), [(2, 0.92), (5, 0.92), (7, 0.93), (12, 0.93), (16, 0.93), (25, 0.93)])
def test_a_few_problems_cover_every_true_share(n: int, least: float) -> None:
    """Wilson's own interval falls to 83% next to 0 and 1."""
    assert exact_coverage(n).min() >= least


@pytest.mark.parametrize("n", [10, 20, 30, 50, 100, 200, 500])
def test_every_true_share_is_covered_and_the_mean_is_95_percent_within_2(n: int) -> None:
    covered = exact_coverage(n)
    assert covered.min() >= 0.93
    assert 0.93 <= covered.mean() <= 0.97


CENTRAL = (0.05, 0.2, 0.5, 0.8, 0.95)
EXTREME = (0.02, 0.98)


def assert_covered(found: dict[float, float]) -> None:
    """The standard of benchmarks/intervals.md: 94% to 98.5% in the mean over true accuracies, none below 93%."""
    assert 0.94 <= np.mean(list(found.values())) <= 0.985, found
    assert min(found.values()) >= 0.93, found


@pytest.mark.parametrize("n", [10, 30])
@pytest.mark.parametrize("population", coverage.POPULATIONS)
def test_clustered_completions(n: int, population: str) -> None:
    """8 completions each, with three kinds of correlation within a problem; 2,000 evaluations for every accuracy."""
    assert_covered({p: coverage.accuracy_coverage(population, p, n, 8) for p in (*CENTRAL, *EXTREME)})


@pytest.mark.parametrize("samples", [4, 16])
@pytest.mark.parametrize("population", coverage.POPULATIONS)
def test_clustered_completions_of_many_problems(population: str, samples: int) -> None:
    assert_covered({p: coverage.accuracy_coverage(population, p, 100, samples) for p in (*CENTRAL, *EXTREME)})


@pytest.mark.parametrize("measure", [coverage.pass_coverage, coverage.majority_coverage])
@pytest.mark.parametrize("population", ["unequal", "nearly equal"])
def test_pass_and_majority(measure: Callable[..., float], population: str) -> None:
    assert_covered({p: measure(population, p, 30, 8, 4, draws=1000) for p in (*CENTRAL, *EXTREME)})


def test_the_true_majority_by_simulation() -> None:
    """The formula that `majority_coverage` is compared with, against simulated votes."""
    rng = np.random.default_rng(0)
    votes = rng.choice(4, p=[0.4, 0.2, 0.2, 0.2], size=(40_000, 4))
    counts = np.stack([(votes == kind).sum(axis=1) for kind in range(4)], axis=1)
    most = counts == counts.max(axis=1, keepdims=True)
    won = most[:, 0] / most.sum(axis=1)
    assert coverage._true_majority(np.array([0.4]), 4)[0] == pytest.approx(won.mean(), abs=0.01)


@pytest.mark.parametrize(("spread", "least"), [(0.5, 0.94), (1.0, 0.92)])
def test_skewed_lengths(spread: float, least: float) -> None:
    """Student's t covers the mean of very skewed lengths only 86% of the time."""
    assert coverage.length_coverage(spread, 20, draws=1000) >= least


def test_means() -> None:
    rng = np.random.default_rng(10)
    estimates = [mean_estimate(list(map(float, row))) for row in rng.normal(3.0, 2.0, size=(1000, 10))]
    assert 0.93 <= np.mean([e.low <= 3.0 <= e.high for e in estimates]) <= 0.97


def test_a_bootstrapped_mean_is_seeded_and_its_interval_is_longer_on_the_long_side() -> None:
    lengths = [10.0] * 6 + [20.0] * 3 + [200.0]
    one = mean_estimate(lengths)
    assert one == mean_estimate(lengths)
    assert one.value == 32.0
    assert one.high - one.value > one.value - one.low > 0
    assert mean_estimate([5.0] * 20) == Estimate(5.0, 5.0, 5.0)
    two = mean_estimate([10.0, 18.0], lowest=0.0)  # 14 ± 12.706 · 4, and no length is below zero
    assert (two.value, two.low) == (14.0, 0.0)
    assert two.high == pytest.approx(14 + 12.7062 * 4, rel=1e-4)
    three = mean_estimate([1.0, 2.0, 3.0])  # too few to bootstrap: 2 ± 4.3027 / sqrt(3)
    assert three.high == pytest.approx(2 + 4.3027 / 3**0.5, abs=1e-4)


@pytest.mark.parametrize(("n", "up", "down"), [(30, 0.1, 0.1), (30, 0.3, 0.05), (200, 0.05, 0.02), (500, 0.2, 0.15)])
def test_paired_differences(n: int, up: float, down: float) -> None:
    rng = np.random.default_rng([n, int(100 * up)])
    counts = rng.multinomial(n, [up, down, 1 - up - down], size=DRAWS)
    found = [bonett_price(int(gained), int(lost), n) for gained, lost, _ in counts]
    assert np.mean([low <= up - down <= high for low, high in found]) >= 0.93


@pytest.mark.parametrize(
    ("degrees", "published"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (5, 2.5706),
        (9, 2.2622),
        (30, 2.0423),
        (100, 1.9840),
        (120, 1.9799),
        (500, 1.9647),
    ],
)
def test_t_quantile_against_tables(degrees: int, published: float) -> None:
    assert t_quantile(degrees) == pytest.approx(published, abs=6e-5)


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [(0.0, 5, 1.0), (1.0, 1, 0.5), (-1.0, 1, 0.5), (2.364624, 7, 0.05), (1.894579, 7, 0.1), (-3.499483, 7, 0.01)],
)
def test_students_p_value_against_tables(t: float, degrees: int, p: float) -> None:
    assert t_p_value(t, degrees) == pytest.approx(p, abs=2e-6)
