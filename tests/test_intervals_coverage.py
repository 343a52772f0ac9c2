"""How often the 95% intervals hold the true value, by simulation with fixed seeds."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from covey.evaluation.estimators import mean_estimate, share_estimate, t_quantile, wilson_interval
from covey.evaluation.paired import bonett_price

DRAWS = 2000


@pytest.mark.parametrize("n", [10, 30, 100, 500])
@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9, 0.98])
def test_single_completions_by_counting_every_outcome(n: int, p: float) -> None:
    """Not simulated but exact. Counts are whole, so 95% cannot be met on the dot; it stays from 92% on."""
    covered = 0.0
    for right in range(n + 1):
        low, high = wilson_interval(right, n)
        covered += comb(n, right) * p**right * (1 - p) ** (n - right) * (low <= p <= high)
    assert covered >= 0.92


@pytest.mark.parametrize("p", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("n", [10, 30, 200])
@pytest.mark.parametrize("spread", [1.0, 20.0])
def test_clustered_completions(n: int, p: float, spread: float) -> None:
    """Problems of very different (1) or almost equal (20) difficulty, 8 completions each: never under 93%."""
    rng = np.random.default_rng([n, int(100 * p), int(spread)])
    chances = rng.beta(spread * p, spread * (1 - p), size=(DRAWS, n))
    shares = rng.binomial(8, chances) / 8
    estimates = [share_estimate(list(map(float, row)), 8 * n) for row in shares]
    assert np.mean([e.low <= p <= e.high for e in estimates]) >= 0.93


@pytest.mark.parametrize("n", [10, 100])
def test_means(n: int) -> None:
    rng = np.random.default_rng(n)
    estimates = [mean_estimate(list(map(float, row))) for row in rng.normal(3.0, 2.0, size=(DRAWS, n))]
    assert 0.93 <= np.mean([e.low <= 3.0 <= e.high for e in estimates]) <= 0.97


@pytest.mark.parametrize(("n", "up", "down"), [(30, 0.1, 0.1), (30, 0.3, 0.05), (200, 0.05, 0.02), (500, 0.2, 0.15)])
def test_paired_differences(n: int, up: float, down: float) -> None:
    rng = np.random.default_rng([n, int(100 * up)])
    counts = rng.multinomial(n, [up, down, 1 - up - down], size=DRAWS)
    found = [bonett_price(int(gained), int(lost), n) for gained, lost, _ in counts]
    assert np.mean([low <= up - down <= high for low, high in found]) >= 0.93


@pytest.mark.parametrize(("degrees", "published"), [(1, 12.706), (5, 2.5706), (9, 2.2622), (30, 2.0423), (500, 1.9647)])
def test_t_quantile_against_tables(degrees: int, published: float) -> None:
    assert t_quantile(degrees) == pytest.approx(published, abs=2e-3)
