"""pass@k, maj@k and the paired tests against full enumeration."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, product

import pytest

from covey.answers import Outcome
from covey.errors import ConfigError
from covey.evaluation.estimators import majority_at_k, pass_at_k, powers_up_to
from covey.evaluation.metrics import compute_metrics
from covey.evaluation.paired import compare, holm, mcnemar, sign_flip


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one() -> None:
    for n in range(1, 8):
        for right in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations([True] * right + [False] * (n - right), k))
                assert pass_at_k(n, right, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_majority_at_k_is_the_mean_over_subsets_and_ways_to_break_ties() -> None:
    answers, right = ["7", "8", "7", None, "8", "9"], [True, False, True, False, False, False]
    for k in range(1, 7):
        values = []
        for subset in combinations(answers, k):
            votes = Counter(answer for answer in subset if answer is not None)
            most = [a for a in votes if votes[a] == max(votes.values())]
            values.append(most.count("7") / len(most) if most else 0.0)
        assert majority_at_k(answers, right, k) == pytest.approx(sum(values) / len(values))
    assert majority_at_k(answers, right, 6) == 0.5  # 7 and 8 tie with two votes each


def test_many_subsets_are_drawn_by_seed() -> None:
    answers, right = ["1"] * 20 + ["2"] * 12, [True] * 20 + [False] * 12
    drawn = majority_at_k(answers, right, 9, seed=3)
    ways = sum(math.comb(20, i) * math.comb(12, 9 - i) for i in range(5, 10))
    assert drawn == majority_at_k(answers, right, 9, seed=3) == pytest.approx(ways / math.comb(32, 9), abs=0.04)


def test_k_above_the_samples_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"k=8 .* 4 completions .* evaluation\.num_samples=8"):
        pass_at_k(4, 1, 8)
    assert [powers_up_to(n) for n in (1, 6, 8)] == [[1], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_the_figures_of_chosen_k_are_means_over_problems() -> None:
    right = [[True, False, False, False], [True, True, True, False], [False] * 4]
    rows = [
        {
            "problem": problem,
            "outcome": Outcome.RIGHT if ok else Outcome.WRONG,
            "partial": ok,
            "well_formed": True,
            "truncated": False,
            "length": 5,
            "extracted": "1" if ok else "2",
        }
        for problem, flags in enumerate(right)
        for ok in flags
    ]
    found = compute_metrics(rows, ks=(3, 1, 3))
    assert [name for name in found if "@" in name] == ["avg@4", "pass@1", "pass@3", "maj@3"]
    # Of the four ways to take 3 of 4, three hold the only right one; with three right ones all do.
    assert found["pass@3"].value == pytest.approx((3 / 4 + 1 + 0) / 3)
    assert found["maj@3"].value == pytest.approx((0 + 1 + 0) / 3)
    assert found["pass@1"].value == found["accuracy"].value == pytest.approx(1 / 3)
    with pytest.raises(ConfigError, match=r"k=5 .* 4 completions"):
        compute_metrics(rows, ks=(5,))


def test_mcnemar_and_sign_flips_by_enumeration() -> None:
    # 8 gained, 1 lost: both tails of 9 coin tosses, 2 * (1 + 9) / 512
    assert mcnemar(8, 1) == pytest.approx(20 / 512)
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    gaps = [0.5, 0.25, -0.25, 1.0, 0.0]
    seen = abs(sum(gaps))
    flips = [abs(sum(s * g for s, g in zip(signs, gaps, strict=True))) for signs in product((-1, 1), repeat=5)]
    assert sign_flip(gaps) == pytest.approx(sum(flip >= seen - 1e-9 for flip in flips) / 32)
    assert sign_flip([1.0] * 40) < 1e-4


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


def test_a_comparison_by_hand() -> None:
    first = [[0.0]] * 12 + [[1.0]] * 88
    second = [[1.0]] * 8 + [[0.0]] * 4 + [[1.0]] * 86 + [[0.0]] * 2
    found = compare(first, second)
    assert (found.first, found.second) == (0.88, pytest.approx(0.94))
    assert (len(found.gained), found.lost, found.difference) == (8, (98, 99), pytest.approx(0.06))
    assert found.p_value == pytest.approx(2 * (1 + 10 + 45) / 1024)
    # (9 - 3) / 102 ± 1.96 sqrt((12/102 - (6/102)²) / 102)
    assert (found.low, found.high) == (pytest.approx(-0.00674, abs=1e-4), pytest.approx(0.12438, abs=1e-4))
    # N so that N 0.06 - 1, one problem being lost to whole counts, is 2.8016 standard errors sqrt(N variance)
    variance, n = (0.10 - 0.06**2) * 100 / 99, found.plan.problems.value + 100
    assert 0.06 * n - 1 >= 2.8015852 * math.sqrt(n * variance)
    assert 0.06 * (n - 1) - 1 < 2.8015852 * math.sqrt((n - 1) * variance)
    mirrored = compare(second, first)
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_a_permutation_test_by_enumeration() -> None:
    gaps = [0.5, 0.25, -0.25, 0.75, 0.5]
    seen = abs(sum(gaps))
    all_signs = [abs(sum(s * g for s, g in zip(signs, gaps, strict=True))) for signs in product((-1, 1), repeat=5)]
    assert sign_flip(gaps) == sum(one >= seen for one in all_signs) / 32
