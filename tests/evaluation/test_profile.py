"""The verdict of `covey profile` over simulated policies, and its figures by hand."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from covey.evaluation.profile import flat, judge

G = 8
LEARN, WARM_START, EASY = "learn", "warm start first", "too easy"
FORM, GRADER, UNSURE = "the form is missing", "the grader cannot read it", "not enough problems to say"

Policy = tuple[str, dict[float, float], float, float, float | None]
"""The true verdict; the accuracies of problems with their shares; the shares of completions, of those that are not
right, without a form and not graded; and pass@8 of chance."""

POLICIES: tuple[Policy, ...] = (
    (LEARN, {0.3: 1}, 0.4, 0, None),
    (LEARN, {0.05: 1}, 0, 0, None),
    (LEARN, {0.01: 1}, 0.5, 0, None),  # 7.7% of groups are mixed
    (LEARN, {0.0: 0.92, 0.5: 0.08}, 0, 0, None),  # 7.9%
    (LEARN, {0.0: 0.5, 0.9: 0.5}, 0, 0, None),
    (LEARN, {0.9: 1}, 0, 0, None),
    (LEARN, {1.0: 0.8, 0.6: 0.2}, 0, 0, None),
    (LEARN, {0.05: 1}, 0, 0, 0.2),  # 33.7% against chance
    (LEARN, {0.033: 1}, 0, 0, 0.2),  # 23.5%
    (WARM_START, {0.0: 1}, 0, 0, None),
    (WARM_START, {0.0: 1}, 0.5, 0, 0.2),
    (WARM_START, {0.0035: 1}, 0, 0, None),  # 2.8% of groups
    (WARM_START, {0.0: 0.98, 0.3: 0.02}, 0, 0, None),
    (WARM_START, {0.01: 1}, 0, 0, 0.2),  # 7.7% is below chance
    (WARM_START, {0.024: 1}, 0, 0, 0.2),  # 17.7%
    (WARM_START, {0.0: 0.7, 1.0: 0.3}, 0, 0, None),  # solved always or never
    (EASY, {1.0: 1}, 0, 0, None),
    (EASY, {0.98: 1}, 0, 0, None),
    (EASY, {1.0: 0.75, 0.0: 0.25}, 0, 0, None),
    (FORM, {0.0: 1}, 1, 0, None),
    (FORM, {0.02: 1}, 0.8, 0, None),
    (FORM, {0.0: 1}, 0.78, 0, 0.2),
    (GRADER, {0.0: 1}, 0.2, 0.6, None),
    (GRADER, {0.0: 1}, 0, 1, None),
)


def _verdicts(policy: Policy, problems: int, samples: int, times: int, rng: np.random.Generator) -> Counter[str]:
    _, accuracies, formless, lost, chance = policy
    found: Counter[str] = Counter()
    for _ in range(times):
        of_problems = rng.choice([*accuracies], problems, p=[*accuracies.values()])
        right = rng.binomial(samples, of_problems)
        without_form, not_graded, _ = rng.multinomial(samples - right, [formless, lost, 1 - formless - lost]).T
        found[judge(*(right.tolist(), samples, G, without_form.tolist(), not_graded.tolist(), chance))[0]] += 1
    return found


@pytest.mark.parametrize(
    ("problems", "samples", "times", "share"), [(32, 8, 100, 0.3), (128, 16, 60, 0.7), (512, 8, 40, 0.85)]
)
def test_few_verdicts_are_wrong(problems: int, samples: int, times: int, share: float) -> None:
    """All these policies are 2 points or more from each threshold that their verdict hangs on."""
    rng, decided = np.random.default_rng(problems + samples), Counter[str]()
    for policy in POLICIES:
        found = _verdicts(policy, problems, samples, times, rng)
        wrong = found.total() - found[policy[0]] - found[UNSURE]
        assert wrong <= 0.05 * times, (policy, found)
        decided[policy[0]] += found[policy[0]]
    assert decided.total() >= share * times * len(POLICIES), decided


def test_few_problems_decide_what_is_clear_alone() -> None:
    nothing = [0] * 20
    assert judge([3] * 20, 8, 8, nothing, nothing, None)[0] == LEARN
    assert judge(nothing, 8, 8, nothing, nothing, None)[0] == UNSURE  # pass@8 may be 16%
    assert judge([0] * 128, 8, 8, [0] * 128, [0] * 128, None)[0] == WARM_START
    assert judge(nothing, 8, 8, [8] * 20, nothing, None)[0] == FORM
    assert judge(nothing, 8, 8, nothing, [8] * 20, None)[0] == GRADER


def test_the_reason_has_the_figures() -> None:
    verdict, reason = judge([0] * 128, 16, 8, [0] * 128, [0] * 128, 0.199)
    assert (verdict, "pass@8 is 0.0% [0.0 to 3.5]" in reason) == (WARM_START, True)
    verdict, reason = judge([4] * 64 + [0] * 64, 16, 8, [0] * 128, [0] * 128, 0.6)  # pass@8 is 48.1%
    assert verdict in (WARM_START, UNSURE)
    assert reason.endswith("that of random answers 60.0%")


@pytest.mark.parametrize("values", ["aaaabbbb", "aaaaaaab", "abcdefgh", "aaaaaaaa"])
@pytest.mark.parametrize("group", [2, 3, 8])
def test_groups_without_signal_by_enumeration(values: str, group: int) -> None:
    every = [*combinations(values, group)]
    expected = Fraction(sum(len({*one}) == 1 for one in every), len(every))
    assert math.isclose(flat(Counter(values).values(), group), expected, abs_tol=1e-12)
