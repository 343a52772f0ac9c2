"""Every rule on a series made for it: when it gives a finding, with its number, and when it gives none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from covey.evaluation.comparison import PairedResult
from covey.evaluation.estimators import Estimate
from covey.evaluation.paired import compare
from covey.report import completion_findings
from covey.report import findings as rules
from covey.report.completion_findings import Evidence, Finding, Rule
from covey.report.findings import findings
from covey.report.load import RunRecord
from covey.report.summary import Change, changes
from covey.runlog import RunDirectory, names
from covey.runlog.metrics import Row

STEPS = 50
Curve = Callable[[int], float]


def _rows(curves: Mapping[str, Curve]) -> list[Row]:
    return [{names.STEP: step} | {name: curve(step) for name, curve in curves.items()} for step in range(STEPS)]


def _change(gained: int, lost: int, of: int = 100, *, steps: tuple[int, int] = (0, 49), tested: bool = True) -> Change:
    """From 40% right, with so many problems gained and lost."""
    right = 40 * of // 100
    first = [[1.0]] * right + [[0.0]] * (of - right)
    last = [[0.0]] * lost + [[1.0]] * (right - lost + gained) + [[0.0]] * (of - right - gained)
    before, after = (Estimate(sum(map(sum, side)) / of, 0.3, 0.5) for side in (first, last))
    found = compare(first, last) if tested else None
    paired = PairedResult("test", found=found, reason="" if tested else "no files")
    return Change("test", "accuracy", "exact_match", steps, before, after, paired)


def _given(
    curves: Mapping[str, Curve] | None = None,
    config: Mapping[str, Any] | None = None,
    **more: Any,
) -> Evidence:
    return Evidence(_rows(curves or {}), config or {}, **more)


def _config(**kl: Any) -> dict[str, Any]:
    return {"objective": {"kl": kl}, "training": {"max_completion_length": 96}}


MASKED = {"max_completion_length": 96, "mask_truncated_completions": True}
GAP, (TYPES, CUT_OFF, STALE) = names.SAMPLING_GAP, names.SAMPLING_GAP_PARTS
OUTSIDE = f"{names.SAMPLING_RATIO}outside"
RIGHT, LOST = names.grader_name("right"), names.grader_name("timed_out")
SPEAKS: list[tuple[Rule, Evidence, str, str, str]] = [
    # McNemar: 2 / 2^6 for 6 and 0, 2 * (1 + 14) / 2^14 for 13 and 1, 2 * (1 + 5) / 2^5 for 4 and 1.
    (rules.held_out_change, _given(change=_change(13, 1)), "good", "+12.0 points", "From 40.0% at step 0 to 52.0%"),
    (rules.held_out_change, _given(change=_change(0, 6)), "warn", "-6.0 points", "Use an earlier checkpoint"),
    (rules.held_out_change, _given(change=_change(4, 1)), "note", "+3.0 points", "tell a true difference of about"),
    (rules.held_out_change, _given(change=_change(13, 1, tested=False)), "note", "+12.0 points", "no files"),
    (
        rules.best_was_earlier,
        _given(since_best=_change(0, 10, steps=(10, 49)), candidates=4),  # 2 / 2^10, times 4
        "warn",
        "-10.0 points",
        "was 40.0% at step 10 and ends at 30.0%. best_model links",
    ),
    (
        rules.no_signal,
        _given({names.FRAC_REWARD_ZERO_STD: lambda s: 0.6 if s >= 20 else 0.1, RIGHT: lambda s: 0.9}),
        "warn",
        "60% of groups",
        "From step 21 on, 60% of groups had no signal: all their completions got the same reward. Harder problems",
    ),
    (
        rules.no_signal,
        _given({names.FRAC_REWARD_ZERO_STD: lambda s: 0.8, RIGHT: lambda s: 0.02}),
        "warn",
        "80% of groups",
        "Easier problems",
    ),
    (
        rules.no_signal,
        Evidence(_rows({names.FRAC_REWARD_ZERO_STD: lambda s: 1.0})[1:11], {"objective": {"resample_groups": 2}}),
        "warn",
        "100% of groups",
        " problems or more generations per prompt would help.",
    ),
    (
        rules.no_signal,  # ten steps, of which every fifth is logged
        Evidence([{names.STEP: step, names.FRAC_REWARD_ZERO_STD: 1.0} for step in (5, 10)], {}),
        "warn",
        "100% of groups",
        "From step 5 on, 100% of groups had no signal",
    ),
    (
        rules.truncation,
        Evidence(_rows({names.CLIPPED_RATIO: lambda s: 1.0})[1:11], {"training": MASKED}),
        "warn",
        "100% truncated",
        "length limit of 96 tokens and masked, so that no reward has any effect. Raise training.max_completion_length.",
    ),
    (
        rules.truncation,
        _given({names.CLIPPED_RATIO: lambda s: 0.5}, {"training": MASKED}),
        "warn",
        "50% truncated",
        "at the length limit of 96 tokens and masked. Raise training.max_completion_length.",
    ),
    (
        rules.length_without_gain,
        _given({names.COMPLETION_LENGTH: lambda s: 100 + 4 * s}, change=_change(1, 1)),
        "warn",
        "118 → 278 tokens",  # the means over steps 0 to 9 and 40 to 49
        "longer",
    ),
    (
        rules.reward_without_gain,
        _given({names.REWARD: lambda s: s / STEPS}, change=_change(0, 2)),
        "warn",
        "reward +0.80",
        "(grader: exact_match) does not (-2.0 points)",
    ),
    (
        rules.format_saturated,
        _given({names.reward_mean("format"): lambda s: 1.0 if s >= 10 else 0.2}),
        "good",
        "format 1.00",
        "since step 12",  # the mean of five steps around it
    ),
    (
        rules.kl_passed_target,
        _given({names.KL: lambda s: 0.01 * s}, _config(controller="adaptive", kl_target=0.1)),
        "warn",
        "KL 0.445",
        "passed its target of 0.1 at step 11 and ends at",
    ),
    (
        rules.truncation,
        _given({names.CLIPPED_RATIO: lambda s: 0.25}, _config()),
        "warn",
        "25% truncated",
        "of 96 tokens",
    ),
    (
        rules.entropy_collapse,
        _given({names.ENTROPY: lambda s: 0.5 if s < 25 else 0.05}),
        "warn",
        "0.5 → 0.05 nats",
        "fell to 10% of its start",
    ),
    (
        rules.entropy_collapse,
        _given({names.ENTROPY: lambda s: 0.5 if s < 25 else 0.05}, change=_change(13, 1)),
        "note",  # a clean win
        "0.5 → 0.05 nats",
        "fell to 10% of its start",
    ),
    (
        rules.sampler_apart,
        _given({GAP: lambda s: 0.1, TYPES: lambda s: 0.1, OUTSIDE: lambda s: 0.125}),
        "warn",
        "0.1 nats per token",
        "12.5% of the ratios are out of bounds",
    ),
    (
        rules.sampler_apart,
        _given({GAP: lambda s: 0.5, TYPES: lambda s: 0.001, STALE: lambda s: 0.49}),
        "warn",
        "0.49 nats per token",
        "Lower training.staleness",
    ),
    (
        rules.sampler_apart,
        _given({GAP: lambda s: 0.11, TYPES: lambda s: 0.01, CUT_OFF: lambda s: 0.1}),
        "warn",
        "0.1 nats per token",
        "a token's ratio is 0.905 where it should be 1. Set rollout.support=kept",
    ),
    (
        rules.near_argmax,
        _given({names.LOG_ODDS: lambda s: 8.0}, {"objective": {"name": "xdr", "xdr_tau": 0.05}}),
        "note",
        "log-odds 8",
        "xdr_tau=0.2 would make that e^2",
    ),
    (
        completion_findings.grader_lost,
        _given({LOST: lambda s: 0.02}),
        "warn",
        "2.0% of gradings",
        "2.0% of gradings timed out",
    ),
    (completion_findings.grader_lost, _given({LOST: lambda s: 0.002}), "note", "0.2% of gradings", "0.0% crashed"),
    (
        completion_findings.gold_unreadable,
        _given({names.grader_name("unparsable_gold"): lambda s: 0.1}),
        "warn",
        "10.0% of gradings",
        "gold answers",
    ),
]


@pytest.mark.parametrize(("rule", "run", "level", "figure", "text"), SPEAKS)
def test_a_rule_gives_its_finding(rule: Rule, run: Evidence, level: str, figure: str, text: str) -> None:
    found = rule(run)
    assert isinstance(found, Finding)
    assert (found.level, found.figure[: len(figure)]) == (level, figure)
    assert text in found.text
    assert found.title


LONGER = {names.COMPLETION_LENGTH: lambda s: 100 + 4 * s}
CALLS, FAILED = names.TOOL_CALLS, names.TOOL_FAILURES
PER_STEP = {names.COMPLETIONS_PER_SECOND: lambda s: 32.0, names.STEP_TIME: lambda s: 2.0}  # 64 completions
REPEATS, HOLDS = f"train/{names.REPEATS_PROMPT}", names.GOLD_VALUE_SHARE
MAIN = {"eval/accuracy": lambda s: 0.5}
SPEAKS += [
    (
        completion_findings.copied_prompt,
        _given({REPEATS: lambda s: s / 49}),
        "warn",
        "9% → 91% of completions",
        "no work was done",
    ),
    (completion_findings.copied_prompt, _given({REPEATS: lambda s: 0.6}), "warn", "60% → 60%", "piece of the question"),
    (
        completion_findings.copied_prompt,
        _given({f"eval/{names.REPEATS_PROMPT}": lambda s: 0.8 * (s > 30), **MAIN}),
        "warn",
        "0% → 80%",
        "piece of the question",
    ),
    (
        completion_findings.gold_value_missing,
        _given({HOLDS: lambda s: 1.0 - s / 70}),
        "warn",
        "94% → 36% of right",
        "evaluates",
    ),
    (completion_findings.gold_value_missing, _given({HOLDS: lambda s: 0.6}), "warn", "60% → 60%", "gold answer"),
    (
        completion_findings.gold_value_missing,
        _given({f"eval/{names.GOLD_VALUE_SHARE}": lambda s: float(s < 30), **MAIN}),
        "warn",
        "100% → 0%",
        "gold answer",
    ),
    (
        completion_findings.tools_unused,
        _given({CALLS: lambda s: 1.5 if s < 30 else 0.03}),
        "warn",
        "1.5 → 0.03 calls per completion",
        "From step 30 on, completions have at most a tenth of the calls",
    ),
    (
        completion_findings.tools_unused,
        _given({CALLS: lambda s: 1.5 if s < 30 else 0.03}, change=_change(13, 1)),
        "note",
        "1.5 → 0.03",
        "The held-out figure rose all the same",
    ),
    (
        completion_findings.completions_empty,
        _given({names.EMPTY: lambda s: 0.02 * s}),
        "warn",
        "89% of completions",
        "earns more than an honest wrong answer",
    ),
    (
        completion_findings.answers_missed,
        Evidence(_rows({names.grader_name("unparsable_prediction"): lambda s: 0.97})[:3], {}),  # the first three steps
        "warn",
        "97% unparsable prediction",
        "Ask for the form that it reads in the prompt (dataset.system_prompt)",
    ),
    (
        completion_findings.answers_missed,
        _given({names.grader_name("wrong_form"): lambda s: 0.2 if s < 40 else 0.98}),
        "warn",
        "98% wrong form",
        "Show the form in the prompt",
    ),
    (
        completion_findings.answers_missed,
        _given({names.grader_name("unevaluated"): lambda s: 1.0, names.grader_name("wrong_form"): lambda s: 0.0}),
        "warn",
        "100% unevaluated",
        "Ask for the final answer alone",
    ),
    (
        rules.reasoning_unused,
        _given({names.REASONING_SHARE: lambda s: 0.0, names.THINKING_SHARE: lambda s: 0.0}),
        "warn",
        "0.0% of thinking tokens",
        "hardly thinks between the thinking tags",
    ),
    (
        rules.reasoning_unused,
        _given({names.REASONING_SHARE: lambda s: 0.0002, names.THINKING_SHARE: lambda s: 0.6}),
        "warn",
        "0.0% of thinking tokens",
        "It thinks without them",
    ),
    (
        completion_findings.tools_unused,
        _given({CALLS: lambda s: 0.01}),
        "warn",
        "0.01 calls",
        "Begin with a model that calls",
    ),
    (
        completion_findings.calls_fail,
        _given({CALLS: lambda s: float(s % 2), FAILED: lambda s: 0.6 * (s % 2)}),  # a step without calls has no share
        "warn",
        "60% of calls",
        "failed",
    ),
    (
        completion_findings.episodes_lost,  # 2 of 64 in every step
        _given({names.ENVIRONMENT_TIMEOUTS: lambda s: 2.0, names.ENVIRONMENT_CRASHES: lambda s: 0.0, **PER_STEP}),
        "warn",
        "3.1% of episodes",
        "3.1% of episodes timed out and 0.0% crashed",
    ),
    (
        completion_findings.episodes_lost,
        _given({"eval/episode/crashed": lambda s: 0.005, "eval/accuracy": lambda s: 0.5}),
        "note",
        "0.5% of episodes",
        "0.0% of episodes timed out and 0.5% crashed",
    ),
    (
        completion_findings.turn_limit,
        _given({"eval/episode/max_turns": lambda s: s / 100}, {"environment": {"max_turns": 4}}),
        "warn",
        "49% of held-out episodes",
        "in their last turn of 4,",
    ),
    (
        completion_findings.environment_slow,
        _given({names.STEP_TIME: lambda s: 2.0, names.ENVIRONMENT_TIME: lambda s: 1.2}),
        "warn",
        "60% of step time",
        "larger batches",
    ),
]
FOLD = {"metric": "accuracy", "first": 0.5, "second": 0.6, "difference": 0.1, "p_value": 0.01, "text": "+10.0 points"}
SPEAKS += [
    (
        rules.reasoning_tokens,
        _given(fold_gap={"test": FOLD}),
        "good",
        "+10.0 points",
        "60.0% with the reasoning tokens",
    ),
    (
        rules.reasoning_tokens,
        _given(fold_gap={"test": {**FOLD, "difference": -0.1, "first": 0.7, "text": "-10.0 points"}}),
        "warn",
        "-10.0 points",
        "70.0% after folding them back",
    ),
    (
        rules.reasoning_tokens,
        _given(fold_gap={"test": {**FOLD, "p_value": 0.2}}),
        "note",
        "+10.0 points",
        "50.0% after",
    ),
]
AGREED = {"disagreements": [], "kinds": {}, "graded": 90, "grader": "accuracy", "groups": 8, "groups_without_signal": 4}
AGREED |= {"solved_without_signal": 1, "columns": {"reward": ["score"], "gold": ["gts"]}, "right_at": 1.0}
PAID = {
    "disagreement": "rewarded, not right",
    "file": "d/7.jsonl",
    "row": 3,
    "gold": "1",
    "extracted": "2",
    "reward": 0.5,
}
PAID_TOO_MUCH = AGREED | {"disagreements": [PAID], "kinds": {"rewarded, not right": 9}, "largest_reward": 0.5}
UNCHECKED = AGREED | {"disagreements": None, "columns": {"reward": ["score"]}}
UNREAD = AGREED | {"unread": 13, "rows": 640, "unread_at": ["row 7 of a.jsonl"]}
ASKED_AGAIN = AGREED | {"repeated": 5, "asked": 8, "prompts": 3, "most_asked": [("What is\n1 + 1?", 6)]}
LETTERS, SOLVED = names.CHARACTERS, f"{names.PASSED}1"
SPEAKS += [
    (completion_findings.rewards_disagree, _given(audit=AGREED), "good", "90 rollouts", "as the grader accuracy says"),
    (
        completion_findings.rewards_disagree,
        _given(audit=PAID_TOO_MUCH),
        "warn",
        "9 of 90 rollouts",
        "9 rewarded, not right: in row 3 of 7.jsonl, the reward is 0.5 for “2”, and the gold answer “1”. The largest",
    ),
    (completion_findings.rewards_disagree, _given(audit=UNCHECKED), "note", "no column of gold", "--gold NAME names"),
    (
        completion_findings.rewards_unread,
        _given(audit=UNREAD),
        "warn",
        "13 of 640 rollouts",
        "first in row 7 of a.jsonl",
    ),
    (
        completion_findings.prompts_repeat,
        _given(audit=ASKED_AGAIN),
        "warn",
        "8 groups, 3 prompts",
        "one prompt, “What is 1",
    ),
    (completion_findings.groups_without_signal, _given(audit=AGREED), "warn", "4 of 8 groups", "throughout: 1, for"),
    (
        completion_findings.groups_without_signal,
        _given(audit=AGREED | {"groups": 9, "solved_without_signal": 0}),
        "note",
        "4 of 9 groups",
        "teach nothing. Not rewarded: 4",
    ),
    (
        completion_findings.length_drift,
        _given({LETTERS: lambda s: 100 + 100 * (s >= 25), SOLVED: lambda s: s / 49}, audit=AGREED),
        "note",
        "100 → 200 letters",
        "went from 0% to 100%",
    ),
    (
        completion_findings.length_drift,
        Evidence(_rows({LETTERS: lambda s: 125 - 25 * s})[:2], {}, audit=AGREED),
        "note",
        "125 → 100 letters",
        "A length that moves without it",
    ),
    (
        completion_findings.copied_prompt,
        _given({REPEATS: lambda s: 0.1}, audit=AGREED),
        "warn",
        "10% → 10%",
        "final text",
    ),
    (
        rules.truncation,
        Evidence(_rows({names.CLIPPED_RATIO: lambda s: 0.2})[:1], {}, audit=AGREED),
        "warn",
        "20%",
        "Of",
    ),
]
SILENT: list[tuple[Rule, Evidence]] = [
    (completion_findings.rewards_disagree, _given()),
    (completion_findings.rewards_unread, _given(audit=AGREED)),
    (completion_findings.prompts_repeat, _given(audit=ASKED_AGAIN | {"repeated": 1})),
    (completion_findings.groups_without_signal, _given()),
    (completion_findings.groups_without_signal, _given(audit=AGREED | {"groups_without_signal": 0})),
    (completion_findings.length_drift, _given({LETTERS: lambda s: 100 + 100 * (s >= 25)})),
    (completion_findings.length_drift, Evidence(_rows({LETTERS: lambda s: 119 - 19 * s})[:2], {}, audit=AGREED)),
    (rules.no_signal, _given({names.FRAC_REWARD_ZERO_STD: lambda s: 1.0}, audit=AGREED)),
    (completion_findings.copied_prompt, _given({REPEATS: lambda s: 0.09}, audit=AGREED)),
    (rules.held_out_change, _given()),
    (rules.best_was_earlier, _given()),
    (rules.best_was_earlier, _given(since_best=_change(3, 1))),
    (rules.best_was_earlier, _given(since_best=_change(0, 6), candidates=2)),  # 2 * 2 / 2^6 is above 0.05
    (rules.no_signal, _given({names.FRAC_REWARD_ZERO_STD: lambda s: 0.45})),
    (rules.no_signal, Evidence(_rows({names.FRAC_REWARD_ZERO_STD: lambda s: 1.0})[1:10], {})),  # nine steps
    (rules.no_signal, Evidence(_rows({names.FRAC_REWARD_ZERO_STD: lambda s: float(s != 6)})[1:16], {})),
    (rules.no_signal, _given({names.FRAC_REWARD_ZERO_STD: lambda s: 0.9 if s < 30 else 0.1})),  # it passed
    (rules.length_without_gain, _given(LONGER, change=_change(13, 1))),
    (rules.length_without_gain, _given({names.COMPLETION_LENGTH: lambda s: 300 - 4 * s}, change=_change(1, 1))),
    (rules.reward_without_gain, _given({names.REWARD: lambda s: s / STEPS}, change=_change(13, 1))),
    (rules.reward_without_gain, _given({names.REWARD: lambda s: (s % 2) * 1.0}, change=_change(1, 1))),  # noise
    (rules.format_saturated, _given({names.reward_mean("format"): lambda s: 0.9})),
    (rules.format_saturated, _given({names.reward_mean("exact_match"): lambda s: 1.0})),
    (rules.kl_passed_target, _given({names.KL: lambda s: 0.01 * s}, _config(controller="fixed", kl_target=0.1))),
    (rules.kl_passed_target, _given({names.KL: lambda s: 0.11}, _config(controller="adaptive", kl_target=0.1))),
    (rules.truncation, _given({names.CLIPPED_RATIO: lambda s: 0.9 if s < 30 else 0.01}, _config())),
    (rules.entropy_collapse, _given({names.ENTROPY: lambda s: 0.5 - 0.006 * s})),
    (rules.entropy_collapse, _given({names.ENTROPY: lambda s: 0.05 if s < 25 else 0.5})),  # it rose
    (rules.sampler_apart, _given({GAP: lambda s: 0.02, TYPES: lambda s: 0.001, STALE: lambda s: 0.019})),
    (rules.sampler_apart, _given({GAP: lambda s: 1e-6, TYPES: lambda s: 1e-6, CUT_OFF: lambda s: 0.2})),  # one support
    (rules.sampler_apart, _given({GAP: lambda s: 1.0 if s < 30 else 0.001, TYPES: lambda s: 1.0 if s < 30 else 0.001})),
    (rules.sampler_apart, _given()),
    (rules.near_argmax, _given({names.LOG_ODDS: lambda s: 3.9}, {"objective": {"name": "xdr", "xdr_tau": 0.1}})),
    (rules.near_argmax, _given({names.LOG_ODDS: lambda s: 8.0}, {"objective": {"name": "maxent"}})),
    (rules.near_argmax, _given(config={"objective": {"name": "xdr", "xdr_tau": 0.0}})),
    (completion_findings.grader_lost, _given({LOST: lambda s: 0.0})),
    (completion_findings.gold_unreadable, _given()),
    (rules.reasoning_tokens, _given(fold_gap={"hard": FOLD})),
]


SILENT += [
    (completion_findings.copied_prompt, _given({REPEATS: lambda s: 0.05})),
    (completion_findings.copied_prompt, _given({REPEATS: lambda s: 0.4 - s / 200})),  # a base model that unlearns it
    (completion_findings.copied_prompt, _given()),
    (completion_findings.gold_value_missing, _given({HOLDS: lambda s: 1.0 - (s % 2) / 10})),
    (
        completion_findings.gold_value_missing,
        _given({HOLDS: lambda s: 0.8}),
    ),  # decimals that are not written as the gold answer
    (
        completion_findings.gold_value_missing,
        _given({HOLDS: lambda s: 0.0, RIGHT: lambda s: 0.01}),
    ),  # a share among very few
    (completion_findings.tools_unused, _given({CALLS: lambda s: 1.5 if s < 30 else 0.4})),
    (completion_findings.tools_unused, _given({CALLS: lambda s: 1.5 if s < 45 else 0.0})),  # five steps are no trend
    (completion_findings.tools_unused, _given()),
    (completion_findings.calls_fail, _given({CALLS: lambda s: 1.0, FAILED: lambda s: 0.4})),
    (completion_findings.calls_fail, _given({CALLS: lambda s: 0.0, FAILED: lambda s: 0.9})),
    (completion_findings.episodes_lost, _given({names.ENVIRONMENT_TIMEOUTS: lambda s: 0.0, **PER_STEP})),
    (completion_findings.turn_limit, _given({"eval/episode/max_turns": lambda s: 0.5 if s < 49 else 0.05})),
    (
        completion_findings.environment_slow,
        _given({names.STEP_TIME: lambda s: 2.0, names.ENVIRONMENT_TIME: lambda s: 0.9}),
    ),
    (completion_findings.completions_empty, _given({names.EMPTY: lambda s: 1.0 if s < 40 else 0.4})),
    (completion_findings.completions_empty, _given()),
    (completion_findings.answers_missed, _given({names.grader_name("unparsable_prediction"): lambda s: 1.0 - s / 100})),
    (
        completion_findings.answers_missed,  # two steps are not enough
        Evidence(_rows({names.grader_name("wrong_form"): lambda s: 1.0})[:2], {}),
    ),
    (rules.reasoning_unused, _given()),
    (
        rules.reasoning_unused,  # it was used once
        _given({names.REASONING_SHARE: lambda s: 0.002 * (s == 7), names.THINKING_SHARE: lambda s: 0.6}),
    ),
]


@pytest.mark.parametrize(("rule", "run"), SILENT)
def test_a_rule_gives_none(rule: Rule, run: Evidence) -> None:
    assert rule(run) is None


@pytest.mark.parametrize(
    ("rule", "metrics", "key", "value"),
    [
        (rules.truncation, (names.CLIPPED_RATIO,), "training.mask_truncated_completions", True),
        (rules.no_signal, (names.FRAC_REWARD_ZERO_STD,), "objective.resample_groups", 2),
        (rules.length_without_gain, (names.COMPLETION_LENGTH,), "training.loss_type", "dr_grpo"),
        (rules.sampler_apart, (GAP, CUT_OFF), "rollout.support", "kept"),
        (rules.sampler_apart, (GAP, TYPES), "training.cast_lm_head_to_fp32", True),
    ],
)
def test_a_key_that_is_set_is_not_advised(rule: Rule, metrics: tuple[str, ...], key: str, value: Any) -> None:
    group, _, name = key.partition(".")
    curves = dict.fromkeys(metrics, lambda s: 1.0 + s)
    free, used = (rule(_given(curves, {group: values}, change=_change(1, 1))) for values in ({}, {name: value}))
    assert free is not None
    assert key in free.text
    assert used is not None
    assert key not in used.text


def test_every_rule_is_tested_both_ways() -> None:
    assert {rule for rule, *_ in SPEAKS} == {rule for rule, *_ in SILENT} == set(rules.RULES)


def test_the_step_at_which_the_model_stopped_calling_is_exact() -> None:
    found = completion_findings.tools_unused(_given({CALLS: lambda s: 0.8 if s < 40 else 0.0}))
    assert found is not None
    assert found.title == "The model stopped calling tools at step 40"


def test_warnings_come_first_and_a_bare_run_has_no_findings() -> None:
    run = _given({names.CLIPPED_RATIO: lambda s: 0.5}, change=_change(13, 1))
    assert [one.level for one in findings(run)] == ["warn", "good"]
    assert findings(Evidence([{names.STEP: 1, names.REWARD: 0.5}], {})) == []


def test_a_clean_win_opens_with_it() -> None:
    curves = {names.ENTROPY: lambda s: 0.5 if s < 25 else 0.05, RIGHT: lambda s: 0.9}
    run = _given(curves | {names.FRAC_REWARD_ZERO_STD: lambda s: 0.8}, change=_change(13, 1))
    assert [(one.level, one.rule) for one in findings(run)] == [
        ("good", "held_out_change"),
        ("note", "no_signal"),
        ("note", "entropy_collapse"),
    ]


def test_the_best_is_the_highest_after_the_first_and_above_it(tmp_path: Path) -> None:
    def evidence(*accuracies: float) -> Evidence:
        rows = [{names.STEP: 10 * at, names.EVAL_ACCURACY: value} for at, value in enumerate(accuracies)]
        record = RunRecord(RunDirectory(tmp_path), "run", {}, {}, rows, {})
        return Evidence.of(record, changes(record))

    found = evidence(0.1, 0.4, 0.8, 0.7, 0.6)
    assert found.since_best is not None
    assert (found.since_best.steps, found.candidates) == ((20, 40), 3)
    assert evidence(0.9, 0.4, 0.8, 0.6).since_best is None  # nothing improved on the model before training
    assert evidence(0.1, 0.6, 0.8).since_best is None  # the last is the best
