"""distinct@k, coverage@k and their chance rows: by hand, by enumeration of subsets, and by simulation."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

import pytest

from covey.answers.tasks import MODES
from covey.errors import ConfigError
from covey.evaluation.estimators import (
    chance_at_k,
    coverage_at_k,
    distinct_at_k,
    mean_estimate,
    pass_at_k,
    ratio_estimate,
    share_estimate,
)
from covey.evaluation.metrics import compute_metrics


@pytest.mark.parametrize(
    ("counts", "n"), [((1,), 1), ((2, 1), 5), ((3, 1, 1), 6), ((2, 2), 4), ((), 4), ((0, 3), 5), ((4, 2, 1), 9)]
)
def test_distinct_is_the_mean_over_all_subsets(counts: tuple[int, ...], n: int) -> None:
    samples = [mode for mode, count in enumerate(counts) for _ in range(count)]
    samples += [-1] * (n - len(samples))
    for k in range(1, n + 1):
        found = [len(set(subset) - {-1}) for subset in combinations(samples, k)]
        assert distinct_at_k(counts, n, k) == pytest.approx(sum(found) / len(found), abs=1e-12)
        if counts:
            assert coverage_at_k(counts, n, k, 7) == pytest.approx(sum(found) / len(found) / 7, abs=1e-12)


def test_distinct_of_one_mode_is_pass_at_k() -> None:
    for n, c, k in ((10, 3, 4), (16, 1, 8), (7, 7, 2), (5, 0, 5)):
        assert distinct_at_k([c], n, k) == pytest.approx(pass_at_k(n, c, k), abs=1e-14)


@pytest.mark.parametrize(
    ("counts", "n", "k"),
    [((1, 5), 1000, 10), ((400, 300), 1000, 500), ((1,), 10**6, 1), ((2, 3), 100_000, 7), ((3,), 10**5, 99_990)],
)
def test_distinct_is_exact_for_many_samples(counts: tuple[int, ...], n: int, k: int) -> None:
    exact = sum(1 - Fraction(comb(n - c, k), comb(n, k)) for c in counts)
    assert distinct_at_k(counts, n, k) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(
    ("counts", "n", "k"), [((1,), 4, 5), ((1,), 4, 0), ((3, 2), 4, 2), ((-1, 2), 4, 2), ((1,), 0, 1)]
)
def test_impossible_arguments_are_errors(counts: tuple[int, ...], n: int, k: int) -> None:
    with pytest.raises(ConfigError):
        distinct_at_k(counts, n, k)
    with pytest.raises(ConfigError):
        coverage_at_k(counts, n, k, 3)


def test_coverage_needs_as_many_modes_as_were_found() -> None:
    assert math.isnan(coverage_at_k([], 4, 2, 0))
    assert coverage_at_k([1, 1], 2, 2, 2) == 1.0
    with pytest.raises(ConfigError, match="more modes than the 1"):
        coverage_at_k([1, 1], 2, 2, 1)


def test_chance_is_that_of_simulated_answers() -> None:
    chances, k, rng = (0.05, 0.2, 0.01), 6, random.Random(0)
    passed, distinct = 0, 0
    for _ in range(40_000):
        drawn = rng.choices([0, 1, 2, None], [*chances, 1 - sum(chances)], k=k)
        found = set(drawn) - {None}
        passed, distinct = passed + bool(found), distinct + len(found)
    expected = chance_at_k(chances, k)
    assert expected[0] == pytest.approx(passed / 40_000, abs=0.01)
    assert expected[1] == pytest.approx(distinct / 40_000, abs=0.015)
    assert chance_at_k([], 3) == (0.0, 0.0)
    assert chance_at_k([1.0], 3) == (1.0, 1.0)


def test_the_ratio_and_its_interval() -> None:
    """By hand: ratio 5 / 2; residuals 1.5, 0.5, -2 over the mean whole 2/3."""
    found = ratio_estimate([4.0, 1.0, 0.0], [1.0, 0.2, 0.8])
    assert found.value == pytest.approx(2.5)
    assert (found.low + found.high) / 2 == pytest.approx(2.5)
    half = 4.302652729911275 * math.sqrt((1.5**2 + 0.5**2 + 2**2) / 2 / 3) / (2 / 3)
    assert found.high - found.value == pytest.approx(half, rel=1e-9)
    assert math.isnan(ratio_estimate([0.0], [0.0]).value)


TASK = json.dumps({"numbers": [1, 2, 3], "target": 6})  # 1+2+3, 1*2*3, 2*3/1
OTHER = json.dumps({"numbers": [3, 3, 8, 8], "target": 24})


def completions(problem: int, answer: str, modes: Sequence[str | None]) -> list[Mapping[str, Any]]:
    return [
        {
            "problem": problem,
            "answer": answer,
            "outcome": "wrong" if mode is None else "right",
            "mode": mode,
            "extracted": mode or f"wrong {place}",
            **dict.fromkeys(("partial", "well_formed", "truncated"), False),
            "length": 3,
        }
        for place, mode in enumerate(modes)
    ]


def test_metrics_of_two_problems() -> None:
    items = completions(0, TASK, ["1+2+3", "1+2+3", "1*2*3", None]) + completions(1, OTHER, [None] * 4)
    found = compute_metrics(items, ks=(1, 2, 4), grader="countdown")
    distinct = [1 - comb(2, 2) / comb(4, 2) + 1 - comb(3, 2) / comb(4, 2), 0.0]
    assert found["distinct@2"].value == pytest.approx(sum(distinct) / 2)
    assert found["distinct@2"].high == pytest.approx(mean_estimate(distinct, lowest=0.0).high)
    assert found["distinct@4"].value == 1.0  # (2 + 0) / 2
    assert found["coverage@4"].value == pytest.approx((2 / 3 + 0) / 2)
    assert found["coverage@4"] == share_estimate([2 / 3, 0.0], 8, 4)
    assert found["distinct_if_solved@4"].value == 2.0
    assert found["distinct_if_solved@1"].value == 1.0
    chances = [MODES["countdown"](answer) or {} for answer in (TASK, OTHER)]
    sums = [sum(one.values()) for one in chances]
    assert found["chance/accuracy"].value == found["chance/pass@1"].value == pytest.approx(sum(sums) / 2)
    assert found["chance/pass@4"].value == pytest.approx(sum(1 - (1 - p) ** 4 for p in sums) / 2)
    assert found["chance/distinct@4"].value == pytest.approx(
        sum(1 - (1 - p) ** 4 for one in chances for p in one.values()) / 2
    )
    assert found["chance/coverage@1"].value == pytest.approx((sums[0] / 3 + sums[1]) / 2)
    assert math.isnan(found["chance/coverage@1"].low)


def test_the_majority_is_over_modes() -> None:
    """Two spellings of one answer are one vote: `extracted` is the grader's name of the answer."""
    items = completions(0, TASK, ["1+2+3", "1+2+3", None, None])
    assert compute_metrics(items, ks=(4,), grader="countdown")["maj@4"].value == 1.0


def test_without_modes_there_are_no_such_figures() -> None:
    items = [{**item, "mode": None} for item in completions(0, "6", ["6", "6", None])]
    found = compute_metrics(items, grader="exact_match")
    assert "pass@2" in found
    assert not any(name.startswith(("distinct", "coverage", "chance")) for name in found)


def test_an_own_grader_has_the_number_of_modes_from_the_data() -> None:
    named = completions(0, "?", ["a", "b", None, None])
    found = compute_metrics(named, ks=(4,), grader="mine.py:grade")
    assert found["distinct@4"].value == 2.0
    assert "coverage@4" not in found
    counted = compute_metrics([{**item, "num_modes": 5} for item in named], ks=(4,), grader="mine.py:grade")
    assert counted["coverage@4"].value == pytest.approx(2 / 5)
    assert "chance/coverage@4" not in counted


def test_one_completion_each_has_no_such_figures() -> None:
    assert not any("@" in name for name in compute_metrics(completions(0, TASK, ["1+2+3"]), grader="countdown"))
