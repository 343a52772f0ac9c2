"""Findings: automatic diagnoses of a run, each from one named rule and with its number.

Every rule is a pure function of the metrics, and of the config as a plain mapping where it needs a limit. It returns a
finding or None; None too if the run is too short for it or the metric was not logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from covey.answers import Outcome
from covey.report.charts.panels import reward_names
from covey.report.charts.series import Point
from covey.runlog import names
from covey.runlog.metrics import Row, series

Level = Literal["good", "note", "warn"]

MIN_STEPS = 20
"""Points that a rule about a trend needs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis."""

    level: Level
    figure: str
    """The number it is based on."""
    text: str
    """What it means, and what would help."""
    rule: str = ""
    """The name of the rule's function."""


Rule = Callable[[Sequence[Row], Mapping[str, Any]], Finding | None]


def findings(rows: Sequence[Row], config: Mapping[str, Any]) -> list[Finding]:
    """All findings, warnings first."""
    found = [replace(finding, rule=rule.__name__) for rule in RULES if (finding := rule(rows, config)) is not None]
    return sorted(found, key=lambda one: ("warn", "note", "good").index(one.level))


def accuracy_change(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """Validation accuracy of the first and last evaluation: a change only if the 95% intervals do not overlap."""
    evaluated = _evaluated(rows)
    if len(evaluated) < 2:
        return None
    (_, first, first_low, first_high), (_, last, last_low, last_high) = evaluated[0], evaluated[-1]
    points = 100 * (last - first)
    figure = f"{points:+.1f} points"
    if last_low > first_high:
        return Finding("good", figure, "Validation accuracy rose significantly: the 95% intervals do not overlap.")
    if last_high < first_low:
        return Finding(
            "warn", figure, "Validation accuracy fell: use an earlier checkpoint, or a smaller learning rate."
        )
    return Finding(
        "note",
        figure,
        "The intervals of the first and the last evaluation overlap: the change may be noise. Use more held-out "
        "problems, or train longer.",
    )


def best_was_earlier(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """Validation accuracy ends below its best in training, and the 95% intervals of the two do not overlap."""
    evaluated = [one for one in _evaluated(rows) if one[0]]
    if len(evaluated) < 2:
        return None
    step, best, best_low, _ = max(evaluated, key=lambda one: one[1])
    _, last, _, last_high = evaluated[-1]
    if best_low <= last_high:
        return None
    text = (
        f"Validation accuracy was {best:.1%} at step {step} and ends at {last:.1%}; their 95% intervals do not overlap."
    )
    kept = (config.get("evaluation") or {}).get("keep_best", True)
    cure = (
        "best_model links to the checkpoint of that step." if kept else "evaluation.keep_best keeps such a checkpoint."
    )
    return Finding(
        "warn",
        f"{100 * (last - best):+.1f} points",
        f"{text} {cure} A smaller learning rate may help.",
    )


def no_signal(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """From some step to the end, half or more of the groups have equal rewards."""
    points = series(rows, names.FRAC_REWARD_ZERO_STD)
    if len(points) < MIN_STEPS:
        return None
    start = _since(points, lambda value: value >= 0.5)
    if start is None or len(points) - start < MIN_STEPS // 2:
        return None
    share, step = fmean(value for _, value in points[start:]), points[start][0]
    reward = fmean(value for _, value in (series(rows, names.REWARD) or points)[-10:])
    right = series(rows, names.grader_name(Outcome.RIGHT))
    solved = right[-1][1] > 0.5 if right else reward > 0.5
    cure = "harder problems" if solved else "easier problems"
    return Finding(
        "warn",
        f"{share:.0%} of groups",
        f"From step {step} on, {share:.0%} of groups had no signal: all their completions got the same reward. "
        f"{cure.capitalize()}, more generations per prompt, or objective.resample_groups would help.",
    )


def length_without_accuracy(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """Completions grow by a fifth or more while validation accuracy does not rise by a point."""
    lengths, evaluated = series(rows, names.COMPLETION_LENGTH), _evaluated(rows)
    if len(lengths) < MIN_STEPS or len(evaluated) < 2:
        return None
    early, late = _ends(lengths)
    grows = early > 0 and late >= 1.2 * early
    if not grows or evaluated[-1][1] > evaluated[0][1] + 0.01:
        return None
    return Finding(
        "warn",
        f"{early:.0f} → {late:.0f} tokens",
        "Completions grow longer while validation accuracy does not rise. Try a loss without length bias "
        "(training.loss_type=dr_grpo) or a length reward.",
    )


def reward_without_accuracy(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """Training reward rises by more than its noise while validation accuracy does not."""
    rewards, evaluated = series(rows, names.REWARD), _evaluated(rows)
    if len(rewards) < MIN_STEPS or len(evaluated) < 2:
        return None
    early, late = _ends(rewards)
    noise = _noise(rewards)
    if late - early <= max(0.1, 2 * noise) or evaluated[-1][1] > evaluated[0][1] + 0.01:
        return None
    gained = 100 * (evaluated[-1][1] - evaluated[0][1])
    return Finding(
        "warn",
        f"reward {late - early:+.2f}",
        f"The training reward rises, but validation accuracy does not ({gained:+.1f} points): the policy may be "
        "exploiting the rewards (reward hacking) or memorising the training problems. Read completions with a high "
        "reward.",
    )


def format_saturated(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """A format reward is (nearly) at its maximum for all completions: it no longer gives a signal."""
    for reward in reward_names(rows):
        points = series(rows, names.reward_mean(reward))
        if not any(word in reward for word in ("format", "tag")) or len(points) < MIN_STEPS:
            continue
        start = _since(points, lambda value: value >= 0.97)
        if start is not None and len(points) - start >= MIN_STEPS // 2:
            return Finding(
                "good" if start else "note",
                f"{reward} {points[-1][1]:.2f}",
                f"The reward {reward} has been saturated since step {points[start][0]}: nearly every completion gets "
                "it, so it no longer gives a signal.",
            )
    return None


def kl_passed_target(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """The KL divergence at the end is well above the adaptive controller's target."""
    kl = (config.get("objective") or {}).get("kl") or {}
    target, points = kl.get("kl_target"), series(rows, names.KL)
    if kl.get("controller") != "adaptive" or not target or len(points) < MIN_STEPS:
        return None
    _, late = _ends(points)
    if late <= 1.25 * target:
        return None
    passed = next(step for step, value in points if value > target)
    return Finding(
        "warn",
        f"KL {late:.3g}",
        f"The KL passed its target of {target:g} at step {passed} and ends at {late / target:.1f} times the target. "
        "Try a smaller objective.kl.kl_horizon, a larger training.beta or a smaller learning rate.",
    )


def truncation(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """A tenth or more of the last completions were truncated at the length limit."""
    points = series(rows, names.CLIPPED_RATIO)
    if len(points) < 3:
        return None
    late = fmean(value for _, value in points[-10:])
    if late < 0.1:
        return None
    limit = (config.get("training") or {}).get("max_completion_length")
    of = f" of {limit} tokens" if limit else ""
    return Finding(
        "warn",
        f"{late:.0%} truncated",
        f"Of the last completions {late:.0%} were truncated at the length limit{of} and graded as incomplete. Raise "
        "training.max_completion_length, or set training.mask_truncated_completions=true.",
    )


def entropy_collapse(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """The policy's entropy fell below a fifth of its start."""
    points = series(rows, names.ENTROPY)
    if len(points) < MIN_STEPS:
        return None
    early, late = _ends(points)
    if early <= 0 or late >= 0.2 * early:
        return None
    return Finding(
        "warn",
        f"{early:.3g} → {late:.3g} nats",
        f"Entropy per token fell to {late / early:.0%} of its start: completions of a group hardly differ now, so "
        "there is little signal. Try a higher temperature, a larger training.epsilon_high or objective=maxent.",
    )


def grader_lost(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """The share of gradings that timed out or crashed, over the whole run."""
    lost = {}
    for outcome in (Outcome.TIMED_OUT, Outcome.CRASHED):
        points = series(rows, names.grader_name(outcome))
        lost[outcome] = fmean(value for _, value in points) if points else 0.0
    share = sum(lost.values())
    if share < 0.001:
        return None
    return Finding(
        "warn" if share >= 0.01 else "note",
        f"{share:.1%} of gradings",
        f"{lost[Outcome.TIMED_OUT]:.1%} of gradings timed out and {lost[Outcome.CRASHED]:.1%} crashed: such "
        "completions get no reward. Filter for these outcomes below, and see rewards.timeout.",
    )


def gold_unreadable(rows: Sequence[Row], config: Mapping[str, Any]) -> Finding | None:
    """Gold answers that the grader cannot parse."""
    points = series(rows, names.grader_name(Outcome.UNPARSABLE_GOLD))
    share = fmean(value for _, value in points) if points else 0.0
    if share < 0.001:
        return None
    return Finding(
        "warn",
        f"{share:.1%} of gradings",
        "The grader cannot parse some of the dataset's gold answers, so completions for them cannot be graded. "
        "`covey doctor` lists the rows.",
    )


RULES: tuple[Rule, ...] = (
    accuracy_change,
    best_was_earlier,
    reward_without_accuracy,
    length_without_accuracy,
    no_signal,
    entropy_collapse,
    kl_passed_target,
    truncation,
    grader_lost,
    gold_unreadable,
    format_saturated,
)


def _evaluated(rows: Sequence[Row]) -> list[tuple[int, float, float, float]]:
    """Step, accuracy and its interval at every evaluation on the main held-out set."""
    sets = names.held_out_sets(rows)
    if not sets:
        return []
    found = [(row[names.STEP], *names.accuracy(row, sets[0])) for row in rows]
    return [entry for entry in found if all(value is not None for value in entry)]


def _ends(points: Sequence[Point]) -> tuple[float, float]:
    """The means of the first and of the last fifth."""
    part = max(3, len(points) // 5)
    return fmean(value for _, value in points[:part]), fmean(value for _, value in points[-part:])


def _noise(points: Sequence[Point]) -> float:
    """The mean absolute change from one point to the next."""
    return fmean(abs(b - a) for (_, a), (_, b) in pairwise(points))


def _since(points: Sequence[Point], holds: Callable[[float], bool]) -> int | None:
    """The index from which the condition holds to the end for the mean of five points; None if there is none."""
    start = None
    for at in range(len(points)):
        here = [value for _, value in points[max(0, at - 2) : at + 3]]
        start = (at if start is None else start) if holds(fmean(here)) else None
    return start
