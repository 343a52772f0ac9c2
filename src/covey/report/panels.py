"""From the rows of metrics to the panels of the report: which curves there are, under which headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from covey.answers import Outcome
from covey.report.series import Panel, Point, Series
from covey.runlog import names
from covey.runlog.metrics import Row, series

Sections = list[tuple[str, list[Panel]]]
"""Headings, and the panels below each."""

STAGES = (
    ("generation", names.GENERATION_TIME),
    ("scoring", names.SCORING_TIME),
    ("rewards", names.REWARDS_TIME),
    ("forward", names.FORWARD_TIME),
    ("backward", names.BACKWARD_TIME),
)
"""Where the time of a step goes."""

_OUTCOME_COLOURS = {
    Outcome.RIGHT: 0,
    Outcome.WRONG: 1,
    Outcome.UNPARSABLE_PREDICTION: 5,
    Outcome.UNPARSABLE_GOLD: 2,
    Outcome.TIMED_OUT: 4,
    Outcome.CRASHED: 3,
}


def set_label(name: str) -> str:
    """What an evaluation set is called where people read it."""
    return {names.TEST_SET: "held-out", names.HARD_SET: "harder set"}.get(name, name)


def reward_names(rows: Sequence[Row]) -> list[str]:
    """The reward functions of the run, in the order of the rows."""
    return list(dict.fromkeys(reward for row in rows for name in row if (reward := names.rewarded(name))))


def make_sections(rows: Sequence[Row], config: Mapping[str, Any]) -> Sections:
    """Every panel that these rows have points for.

    Args:
        rows: of `metrics.jsonl`.
        config: the run's config as plain mappings; says where a line to aim at belongs.
    """
    sections: Sections = [
        ("Learning", [_accuracy(rows), _reward(rows), *_components(rows)]),
        (
            "What it writes",
            [_outcomes(rows), _signal(rows), _form(rows), _length(rows), _truncated(rows), _entropy(rows)],
        ),
        ("The update", [*_divergence(rows, config), _clipped(rows), *_optimiser(rows)]),
        ("MaxEnt", _maxent(rows)),
        ("Reasoning vocabulary", vocabulary_panels(rows)),
        ("Speed and memory", [_stages(rows), _throughput(rows), _memory(rows)]),
    ]
    shown = [(heading, [_with_points(panel) for panel in panels]) for heading, panels in sections]
    return [(heading, kept) for heading, panels in shown if (kept := [p for p in panels if p.series])]


def _with_points(panel: Panel) -> Panel:
    kept = [one for one in panel.series if one.points]
    return Panel(
        panel.key,
        panel.title,
        kept,
        panel.unit,
        panel.note,
        panel.stacked,
        panel.from_zero,
        panel.target if kept else None,
    )


def _lines(rows: Sequence[Row], *named: tuple[str, str]) -> list[Series]:
    return [Series(label, series(rows, name), colour) for colour, (label, name) in enumerate(named)]


def _accuracy(rows: Sequence[Row]) -> Panel:
    lines = [
        Series(
            set_label(held_out),
            series(rows, names.eval_name(held_out, names.ACCURACY)),
            colour,
            low=series(rows, names.eval_name(held_out, names.ACCURACY_LOW)),
            high=series(rows, names.eval_name(held_out, names.ACCURACY_HIGH)),
            smooth=False,
        )
        for colour, held_out in enumerate(names.held_out_sets(rows))
    ]
    return Panel("accuracy", "Validation accuracy", lines, "percent", "Band: 95% interval, clustered by problem.")


def _reward(rows: Sequence[Row]) -> Panel:
    mean, std = series(rows, names.REWARD), series(rows, names.REWARD_STD)
    lines = [Series("mean", mean), Series("spread within groups", std, 5)]
    return Panel("reward", "Reward", lines, note="Weighted sum of all reward functions.", from_zero=False)


def _components(rows: Sequence[Row]) -> list[Panel]:
    found = reward_names(rows)
    if len(found) < 2:
        return []
    named = [(reward.replace("_", " "), names.reward_mean(reward)) for reward in found]
    return [Panel("components", "Reward by function", _lines(rows, *named), from_zero=False)]


def _form(rows: Sequence[Row]) -> Panel:
    lines = [
        Series(set_label(held_out), series(rows, names.eval_name(held_out, names.FORMAT)), colour, smooth=False)
        for colour, held_out in enumerate(names.held_out_sets(rows))
    ]
    return Panel(
        "form", "Well-formed answers", lines, "percent", "Share of validation answers that keep to the format."
    )


def _length(rows: Sequence[Row]) -> Panel:
    lines = _lines(rows, ("training", names.COMPLETION_LENGTH))
    for colour, held_out in enumerate(names.held_out_sets(rows), start=1):
        points = series(rows, names.eval_name(held_out, names.LENGTH))
        lines.append(Series(set_label(held_out), points, colour, smooth=False))
    return Panel("length", "Completion length", lines, note="Mean, in tokens.")


def _truncated(rows: Sequence[Row]) -> Panel:
    lines = _lines(rows, ("training", names.CLIPPED_RATIO))
    for colour, held_out in enumerate(names.held_out_sets(rows), start=1):
        points = series(rows, names.eval_name(held_out, names.TRUNCATED))
        lines.append(Series(set_label(held_out), points, colour, smooth=False))
    return Panel("truncated", "Truncated completions", lines, "percent", "Share that ran into the length limit.")


def _entropy(rows: Sequence[Row]) -> Panel:
    return Panel("entropy", "Entropy", _lines(rows, ("per token", names.ENTROPY)), note="Of the policy, in nats.")


def _outcomes(rows: Sequence[Row]) -> Panel:
    lines = []
    for outcome, colour in _OUTCOME_COLOURS.items():
        points = series(rows, names.grader_name(outcome))
        if any(value for _, value in points):
            lines.append(Series(outcome.replace("_", " "), points, colour))
    return Panel("outcomes", "Grader outcomes", lines, "percent", "Shares of all completions.", stacked=True)


def _divergence(rows: Sequence[Row], config: Mapping[str, Any]) -> list[Panel]:
    kl = (config.get("objective") or {}).get("kl") or {}
    target = kl.get("kl_target") if kl.get("controller") == "adaptive" else None
    beta = series(rows, names.BETA)
    return [
        Panel(
            "kl",
            "KL from the starting model",
            _lines(rows, ("KL", names.KL)),
            note="Per token, in nats." + (" Dashed: the target." if target is not None else ""),
            target=target,
        ),
        Panel("beta", "Weight of the KL term, β", [Series("β", beta, 1, smooth=False)]),
    ]


def _signal(rows: Sequence[Row]) -> Panel:
    lines = _lines(rows, ("groups", names.FRAC_REWARD_ZERO_STD))
    return Panel("signal", "Groups without signal", lines, "percent", "All completions of the group got one reward.")


def _clipped(rows: Sequence[Row]) -> Panel:
    named = (("either", names.CLIP_REGION), ("low", names.CLIP_LOW), ("high", names.CLIP_HIGH))
    return Panel(
        "clip", "Clipped tokens", _lines(rows, *named), "percent", "Probability ratio outside the trust region."
    )


def _optimiser(rows: Sequence[Row]) -> list[Panel]:
    return [
        Panel("grad_norm", "Gradient norm", _lines(rows, ("norm", names.GRAD_NORM))),
        Panel("loss", "Loss", _lines(rows, ("loss", names.LOSS)), note="Near 0 by construction.", from_zero=False),
        Panel("learning_rate", "Learning rate", [Series("rate", series(rows, names.LEARNING_RATE), smooth=False)]),
    ]


def _maxent(rows: Sequence[Row]) -> list[Panel]:
    return [
        Panel("target_entropy", "Entropy of the target", _lines(rows, ("H(w)", names.TARGET_ENTROPY)), note="In nats."),
        Panel("effective", "Effective completions", _lines(rows, ("1 / Σw²", names.EFFECTIVE_COMPLETIONS))),
        Panel("weight", "Weight on right answers", _lines(rows, ("weight", names.WEIGHT_ON_CORRECT)), "percent"),
    ]


def vocabulary_panels(rows: Sequence[Row]) -> list[Panel]:
    """How much is thought, and in which tokens; without points for a run that has no reasoning vocabulary."""
    reasoning = _lines(rows, ("of thinking tokens", names.REASONING_SHARE))
    thinking = _lines(rows, ("of all tokens", names.THINKING_SHARE))
    return [
        Panel("reasoning", "Reasoning tokens", reasoning, "percent", "Share of what is written between the tags."),
        Panel("thinking", "Thinking", thinking, "percent", "Share of tokens that are written between the tags."),
    ]


def _stages(rows: Sequence[Row]) -> Panel:
    lines = _lines(rows, *STAGES)
    known = {step: sum(dict(one.points).get(step, 0.0) for one in lines) for step, _ in series(rows, names.STEP_TIME)}
    rest: list[Point] = [(step, max(0.0, seconds - known[step])) for step, seconds in series(rows, names.STEP_TIME)]
    if any(one.points for one in lines):
        lines.append(Series("other", rest, 5))
    else:
        lines = [Series("step", series(rows, names.STEP_TIME))]
    return Panel("stages", "Where a step's time goes", lines, "seconds", stacked=len(lines) > 1)


def _throughput(rows: Sequence[Row]) -> Panel:
    return Panel("throughput", "Completions per second", _lines(rows, ("completions/s", names.COMPLETIONS_PER_SECOND)))


def _memory(rows: Sequence[Row]) -> Panel:
    named = (("process", names.PROCESS_MEMORY), ("device", names.DEVICE_MEMORY))
    lines = [Series(label, series(rows, name), colour, smooth=False) for colour, (label, name) in enumerate(named)]
    return Panel("memory", "Memory at most", lines, "bytes", "The most that was in use so far.")
