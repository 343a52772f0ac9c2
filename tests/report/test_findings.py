"""Every rule on a series made for it: when it gives a finding, with its number, and when it gives none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from covey.report import findings as rules
from covey.report.findings import Finding, findings
from covey.runlog import names
from covey.runlog.metrics import Row

STEPS = 50
Curve = Callable[[int], float]


def _rows(curves: Mapping[str, Curve], *, accuracy: tuple[float, float] | None = None, half: float = 0.02) -> list[Row]:
    rows: list[Row] = [
        {names.STEP: step} | {name: curve(step) for name, curve in curves.items()} for step in range(STEPS)
    ]
    for row, value in zip((rows[0], rows[-1]), accuracy or (), strict=False):
        row |= {
            names.EVAL_ACCURACY: value,
            names.EVAL_ACCURACY_LOW: value - half,
            names.EVAL_ACCURACY_HIGH: value + half,
        }
    return rows


def _evaluations(*accuracies: float) -> list[Row]:
    keys = (names.EVAL_ACCURACY, names.EVAL_ACCURACY_LOW, names.EVAL_ACCURACY_HIGH)
    return [
        {names.STEP: 10 * at} | dict(zip(keys, (value, value - 0.05, value + 0.05), strict=True))
        for at, value in enumerate(accuracies)
    ]


def _config(**kl: Any) -> dict[str, Any]:
    return {"objective": {"kl": kl}, "training": {"max_completion_length": 96}}


RIGHT, LOST = names.grader_name("right"), names.grader_name("timed_out")
SPEAKS: list[tuple[rules.Rule, list[Row], dict[str, Any], str, str, str]] = [
    (rules.accuracy_change, _rows({}, accuracy=(0.3, 0.5)), {}, "good", "+20.0 points", "rose"),
    (rules.accuracy_change, _rows({}, accuracy=(0.5, 0.3)), {}, "warn", "-20.0 points", "fell"),
    (rules.best_was_earlier, _evaluations(0.1, 0.8, 0.6), {}, "warn", "-20.0 points", "was 80.0% at step 10"),
    (rules.accuracy_change, _rows({}, accuracy=(0.3, 0.33)), {}, "note", "+3.0 points", "overlap"),
    (
        rules.no_signal,
        _rows({names.FRAC_REWARD_ZERO_STD: lambda s: 0.6 if s >= 20 else 0.1, RIGHT: lambda s: 0.9}),
        {},
        "warn",
        "60% of groups",
        "From step 21 on, 60% of groups had no signal: all their completions got the same reward. Harder problems",
    ),
    (
        rules.no_signal,
        _rows({names.FRAC_REWARD_ZERO_STD: lambda s: 0.8, RIGHT: lambda s: 0.02}),
        {},
        "warn",
        "80% of groups",
        "Easier problems",
    ),
    (
        rules.length_without_accuracy,
        _rows({names.COMPLETION_LENGTH: lambda s: 100 + 4 * s}, accuracy=(0.4, 0.4)),
        {},
        "warn",
        "118 → 278 tokens",  # the means over steps 0 to 9 and 40 to 49
        "longer",
    ),
    (
        rules.reward_without_accuracy,
        _rows({names.REWARD: lambda s: s / STEPS}, accuracy=(0.4, 0.38)),
        {},
        "warn",
        "reward +0.80",
        "(-2.0 points)",
    ),
    (
        rules.format_saturated,
        _rows({names.reward_mean("format"): lambda s: 1.0 if s >= 10 else 0.2}),
        {},
        "good",
        "format 1.00",
        "since step 12",  # the mean of five steps around it
    ),
    (
        rules.kl_passed_target,
        _rows({names.KL: lambda s: 0.01 * s}),
        _config(controller="adaptive", kl_target=0.1),
        "warn",
        "KL 0.445",
        "passed its target of 0.1 at step 11 and ends at",
    ),
    (
        rules.truncation,
        _rows({names.CLIPPED_RATIO: lambda s: 0.25}),
        _config(),
        "warn",
        "25% truncated",
        "of 96 tokens",
    ),
    (
        rules.entropy_collapse,
        _rows({names.ENTROPY: lambda s: 0.5 if s < 25 else 0.05}),
        {},
        "warn",
        "0.5 → 0.05 nats",
        "fell to 10% of its start",
    ),
    (rules.grader_lost, _rows({LOST: lambda s: 0.02}), {}, "warn", "2.0% of gradings", "2.0% of gradings timed out"),
    (rules.grader_lost, _rows({LOST: lambda s: 0.002}), {}, "note", "0.2% of gradings", "0.0% crashed"),
    (
        rules.gold_unreadable,
        _rows({names.grader_name("unparsable_gold"): lambda s: 0.1}),
        {},
        "warn",
        "10.0% of gradings",
        "gold answers",
    ),
]


@pytest.mark.parametrize(("rule", "rows", "config", "level", "figure", "text"), SPEAKS)
def test_a_rule_gives_its_finding(
    rule: rules.Rule, rows: list[Row], config: dict[str, Any], level: str, figure: str, text: str
) -> None:
    found = rule(rows, config)
    assert isinstance(found, Finding)
    assert (found.level, found.figure) == (level, figure)
    assert text in found.text


SILENT: list[tuple[rules.Rule, list[Row], dict[str, Any]]] = [
    (rules.best_was_earlier, _evaluations(0.1, 0.8, 0.71), {}),
    (rules.accuracy_change, _rows({}, accuracy=None), {}),
    (rules.no_signal, _rows({names.FRAC_REWARD_ZERO_STD: lambda s: 0.45}), {}),
    (rules.no_signal, _rows({names.FRAC_REWARD_ZERO_STD: lambda s: 0.9 if s < 30 else 0.1}), {}),  # it passed
    (rules.length_without_accuracy, _rows({names.COMPLETION_LENGTH: lambda s: 100 + 4 * s}, accuracy=(0.4, 0.5)), {}),
    (rules.length_without_accuracy, _rows({names.COMPLETION_LENGTH: lambda s: 300 - 4 * s}, accuracy=(0.4, 0.4)), {}),
    (rules.reward_without_accuracy, _rows({names.REWARD: lambda s: s / STEPS}, accuracy=(0.4, 0.5)), {}),
    (rules.reward_without_accuracy, _rows({names.REWARD: lambda s: (s % 2) * 1.0}, accuracy=(0.4, 0.4)), {}),  # noise
    (rules.format_saturated, _rows({names.reward_mean("format"): lambda s: 0.9}), {}),
    (rules.format_saturated, _rows({names.reward_mean("exact_match"): lambda s: 1.0}), {}),
    (rules.kl_passed_target, _rows({names.KL: lambda s: 0.01 * s}), _config(controller="fixed", kl_target=0.1)),
    (rules.kl_passed_target, _rows({names.KL: lambda s: 0.11}), _config(controller="adaptive", kl_target=0.1)),
    (rules.truncation, _rows({names.CLIPPED_RATIO: lambda s: 0.9 if s < 30 else 0.01}), _config()),
    (rules.entropy_collapse, _rows({names.ENTROPY: lambda s: 0.5 - 0.006 * s}), {}),
    (rules.entropy_collapse, _rows({names.ENTROPY: lambda s: 0.05 if s < 25 else 0.5}), {}),  # it rose
    (rules.grader_lost, _rows({LOST: lambda s: 0.0}), {}),
    (rules.gold_unreadable, _rows({}), {}),
]


@pytest.mark.parametrize(("rule", "rows", "config"), SILENT)
def test_a_rule_gives_none(rule: rules.Rule, rows: list[Row], config: dict[str, Any]) -> None:
    assert rule(rows, config) is None


def test_every_rule_is_tested_both_ways() -> None:
    assert {rule for rule, *_ in SPEAKS} == {rule for rule, *_ in SILENT} == set(rules.RULES)


def test_warnings_come_first_and_a_bare_run_has_no_findings() -> None:
    rows = _rows({names.CLIPPED_RATIO: lambda s: 0.5}, accuracy=(0.2, 0.6))
    assert [one.level for one in findings(rows, {})] == ["warn", "good"]
    assert findings([{names.STEP: 1, names.REWARD: 0.5}], {}) == []


def test_the_best_was_earlier() -> None:
    found = rules.best_was_earlier(_evaluations(0.9, 0.4, 0.8, 0.7, 0.6), {})
    assert found is not None
    assert (found.level, found.figure) == ("warn", "-20.0 points")
    assert "was 80.0% at step 20 and ends at 60.0%" in found.text  # the evaluation before training does not count
    assert "best_model links" in found.text
    without = rules.best_was_earlier(_evaluations(0.1, 0.8, 0.6), {"evaluation": {"keep_best": False}})
    assert without is not None
    assert "evaluation.keep_best keeps" in without.text
    assert rules.best_was_earlier(_evaluations(0.1, 0.8, 0.71), {}) is None  # the intervals overlap
    assert rules.best_was_earlier(_evaluations(0.1, 0.6, 0.8), {}) is None
    assert rules.best_was_earlier(_evaluations(0.9, 0.2), {}) is None
