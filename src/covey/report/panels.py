"""The report's panels, made from the metrics under their headings, and as the JSON that the pages' script draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any

from covey.answers import Outcome
from covey.report.load import grader_of
from covey.report.tables import largest_k
from covey.runlog import names
from covey.runlog.metrics import Row, series

Point = tuple[int, float]
"""A training step and a value."""

SMOOTH_FROM = 30
"""Lines with at least this many points are drawn as a running mean over a pale line of every step."""


@dataclass(frozen=True, slots=True)
class Series:
    """One named curve; `low` and `high` bound its interval."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    """Index in the palette."""
    low: Sequence[Point] = ()
    high: Sequence[Point] = ()
    smooth: bool = True
    run: int = 0
    """Whose curve it is, where several runs are drawn."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: curves over the training steps on one pair of axes."""

    key: str
    title: str
    series: Sequence[Series]
    unit: str = "number"
    """Format of the values: `number`, `percent`, `seconds` or `bytes`."""
    note: str = ""
    """One sentence on how to read it."""
    stacked: bool = False
    """Whether the series are parts of a whole, drawn stacked."""
    from_zero: bool = True
    held_out: bool = False
    """Whether its values come from evaluations."""
    target: float | None = None
    """A target value, drawn as a dashed line."""


def window(count: int) -> int:
    """Width (odd) of the running mean for a line of `count` points; 0 for a short line, which is not smoothed."""
    return 0 if count < SMOOTH_FROM else max(5, count // 25 * 2 + 1)


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """The centred mean over `width` (odd) values; at the ends, over those that exist."""
    half = width // 2
    return [fmean(values[max(0, at - half) : at + half + 1]) for at in range(len(values))]


def drawn(one: Series, panel: Panel) -> list[float]:
    """The values of a curve's bold line: the running mean of a long one."""
    values = [value for _, value in one.points]
    width = window(len(values)) if one.smooth or panel.stacked else 0
    return running_mean(values, width) if width else values


def smoothing(panel: Panel) -> int:
    """The width in steps of the running means of a panel; 0 if it draws the values as they are."""
    return max((window(len(one.points)) for one in panel.series if one.smooth or panel.stacked), default=0)


def format_value(value: float, unit: str) -> str:
    """A value as text."""
    if unit == "percent":
        return f"{100 * value:.1f}%"
    if unit == "bytes":
        return f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.0f} MB"
    if unit == "seconds":
        return f"{value:.3g} s"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


Sections = list[tuple[str, list[Panel]]]
"""Headings with their panels."""

STAGES = (
    ("generation", names.GENERATION_TIME),
    ("environment", names.ENVIRONMENT_TIME),
    ("scoring", names.SCORING_TIME),
    ("rewards", names.REWARDS_TIME),
    ("forward", names.FORWARD_TIME),
    ("backward", names.BACKWARD_TIME),
)
"""The stages of a step and their metrics."""

_OUTCOME_COLOURS = {
    Outcome.RIGHT: 0,
    Outcome.WRONG: 1,
    Outcome.UNPARSABLE_PREDICTION: 5,
    Outcome.WRONG_FORM: 6,
    Outcome.UNEVALUATED: 7,
    Outcome.UNPARSABLE_GOLD: 2,
    Outcome.TIMED_OUT: 4,
    Outcome.CRASHED: 3,
}


def reward_names(rows: Sequence[Row]) -> list[str]:
    """The reward functions of the run, in the order of the rows."""
    return list(dict.fromkeys(reward for name in names.logged(rows) if (reward := names.rewarded(name))))


def make_sections(rows: Sequence[Row], config: Mapping[str, Any]) -> Sections:
    """All panels with data.

    Args:
        rows: the rows of `metrics.jsonl`.
        config: the run's config as plain mappings; has the KL target and the grader.
    """
    shown: Sections = []
    for heading, panels in _sections(rows, config):
        if kept := [panel for panel in map(_with_points, panels) if panel.series]:
            shown.append((heading, kept))
    return shown


def make_panels(rows: Sequence[Row], config: Mapping[str, Any]) -> list[Panel]:
    """All panels, also those without data; arguments as for `make_sections`."""
    return [_with_points(panel) for _, panels in _sections(rows, config) for panel in panels]


def _with_points(panel: Panel) -> Panel:
    return replace(panel, series=[one for one in panel.series if one.points])


def _sections(rows: Sequence[Row], config: Mapping[str, Any]) -> Sections:
    return [
        ("Learning", [*_held_out(rows, config), _passed(rows), _reward(rows), *_components(rows)]),
        ("Completion statistics", [_outcomes(rows), *_completions(rows)]),
        ("Tools and environment", _episodes(rows)),
        ("Policy update", [*_divergence(rows, config), *_optimiser(rows)]),
        ("Sampler and trainer", _sampler(rows)),
        ("Objective", _objective(rows)),
        ("Reasoning vocabulary", vocabulary_panels(rows)),
        ("Speed and memory", [_stages(rows), *_use(rows)]),
    ]


def _lines(rows: Sequence[Row], *named: tuple[str, str]) -> list[Series]:
    return [Series(label, series(rows, name), colour) for colour, (label, name) in enumerate(named)]


def _evaluated(rows: Sequence[Row], metric: str, first_colour: int = 0) -> list[Series]:
    """One line for each evaluation set."""
    return [
        Series(names.set_label(held_out), series(rows, names.eval_name(held_out, metric)), colour, smooth=False)
        for colour, held_out in enumerate(names.held_out_sets(rows), start=first_colour)
    ]


def _trained_and_held_out(rows: Sequence[Row], metric: str, held_out: str) -> list[Series]:
    return [*_lines(rows, ("training", metric)), *_evaluated(rows, held_out, 1)]


def _held_out(rows: Sequence[Row], config: Mapping[str, Any]) -> list[Panel]:
    grader = grader_of(config, rows)
    own = f"{names.MEAN_REWARD}/"
    found = dict.fromkeys(name.partition(f"/{own}")[2] for name in names.logged(rows) if name.startswith(f"eval/{own}"))
    functions = [
        Series(name.replace("_", " "), series(rows, names.eval_name(names.TEST_SET, own + name)), colour, smooth=False)
        for colour, name in enumerate(found)
    ]
    parts = Panel("held_out_functions", "Held-out reward by function", functions, from_zero=False, held_out=True)
    reward = Panel(
        "held_out_reward",
        "Held-out reward",
        _with_intervals(rows, names.MEAN_REWARD),
        note="Weighted sum of all reward functions.",
        from_zero=False,
        held_out=True,
    )
    accuracy = _with_intervals(rows, names.ACCURACY)
    title = "Held-out accuracy" + (f" (grader: {grader})" if grader and any(one.points for one in accuracy) else "")
    return [
        Panel("accuracy", title, accuracy, "percent", "Band: 95% interval, clustered by problem.", held_out=True),
        reward,
        *([parts] if len(functions) > 1 else []),
        *_modes(rows),
    ]


def _passed(rows: Sequence[Row]) -> Panel:
    found = [name for name in names.logged(rows) if name.startswith(names.PASSED) and name[-1].isdigit()]
    ends = [[series(rows, f"{name}_{end}") for end in ("low", "high")] for name in found]
    lines = _lines(rows, *((name.partition("/")[2], name) for name in found))
    lines = [replace(one, low=low, high=high, smooth=False) for one, (low, high) in zip(lines, ends, strict=True)]
    return Panel("passed", "pass@k of the rollouts", lines, "percent", "Band: 95% interval, clustered by group.")


def _modes(rows: Sequence[Row]) -> list[Panel]:
    """Right answers found, of the largest k, with what random answers reach."""
    found = []
    for kind, title, unit in (
        (names.COVERAGE, "Share of the right answers found", "percent"),
        (names.DISTINCT, "Different right answers", "number"),
    ):
        metric = largest_k(rows, names.TEST_SET, kind)
        if metric is None:
            continue
        chance = [value for _, value in series(rows, names.eval_name(names.TEST_SET, names.CHANCE + metric))]
        note = "Band: 95% interval over problems." + (" Dashed: random answers." if chance else "")
        lines = _with_intervals(rows, metric)
        target = chance[-1] if chance else None
        found.append(Panel(kind, f"{title} ({metric})", lines, unit, note, held_out=True, target=target))
    return found


def _with_intervals(rows: Sequence[Row], metric: str) -> list[Series]:
    columns = (_evaluated(rows, f"{metric}{end}") for end in ("", "_low", "_high"))
    return [replace(one, low=low.points, high=high.points) for one, low, high in zip(*columns, strict=True)]


def _reward(rows: Sequence[Row]) -> Panel:
    mean, std = series(rows, names.REWARD), series(rows, names.REWARD_STD)
    lines = [Series("mean", mean), Series("std within groups", std, 5)]
    return Panel("reward", "Reward", lines, note="Weighted sum of all reward functions.", from_zero=False)


def _components(rows: Sequence[Row]) -> list[Panel]:
    found = reward_names(rows)
    if len(found) < 2:
        return []
    named = [(reward.replace("_", " "), names.reward_mean(reward)) for reward in found]
    return [Panel("components", "Reward by function", _lines(rows, *named), from_zero=False)]


def _outcomes(rows: Sequence[Row]) -> Panel:
    lines = []
    for outcome, colour in _OUTCOME_COLOURS.items():
        points = series(rows, names.grader_name(outcome))
        if any(value for _, value in points):
            lines.append(Series(outcome.replace("_", " "), points, colour))
    return Panel("outcomes", "Grader outcomes", lines, "percent", "Shares of all completions.", stacked=True)


def _completions(rows: Sequence[Row]) -> list[Panel]:
    signal, policy = ("groups", names.FRAC_REWARD_ZERO_STD), ("policy", names.ENTROPY)
    equal = "All completions of the group got the same reward."
    well_formed = "Share of held-out completions in the required format."
    length = _trained_and_held_out(rows, names.COMPLETION_LENGTH, names.LENGTH)
    truncated = _trained_and_held_out(rows, names.CLIPPED_RATIO, names.TRUNCATED)
    copied = _trained_and_held_out(rows, f"train/{names.REPEATS_PROMPT}", names.REPEATS_PROMPT)
    copied = [line for line in copied if any(value for _, value in line.points)]
    repeats = "Share whose final text is a piece of the question."
    learnt = "Share of the learnt tokens that the model would have written."
    return [
        Panel("signal", "Groups without signal", _lines(rows, signal), "percent", equal),
        Panel("format", "Format compliance", _evaluated(rows, names.FORMAT), "percent", well_formed),
        Panel("length", "Completion length (tokens)", length, note="Mean."),
        Panel("characters", "Completion length (letters)", _lines(rows, ("rollouts", names.CHARACTERS)), note="Mean."),
        Panel("truncated", "Truncated completions", truncated, "percent", "Share that ran into the length limit."),
        Panel("repeats", "Completions that repeat the prompt", copied, "percent", repeats),
        Panel("entropy", "Entropy per token", _lines(rows, policy), note="Of the policy, in nats."),
        Panel("token_accuracy", "Token accuracy", _lines(rows, ("training", names.TOKEN_ACCURACY)), "percent", learnt),
    ]


_ENDS = {names.ANSWERED: 0, "truncated": 1, "max_turns": 2, names.TIMED_OUT: 4, names.CRASHED: 3}
"""How an episode ended, and its colour."""


def _episodes(rows: Sequence[Row]) -> list[Panel]:
    held_out = next(iter(names.held_out_sets(rows)), names.TEST_SET)
    ends = [
        Series(end.replace("_", " "), points, colour, smooth=False)
        for end, colour in _ENDS.items()
        for points in [series(rows, names.eval_name(held_out, f"{names.EPISODE}{end}"))]
        if any(value for _, value in points)
    ]
    lost = (("timed out", names.ENVIRONMENT_TIMEOUTS), ("crashed", names.ENVIRONMENT_CRASHES))
    seconds = "Mean per episode; those of different episodes overlap."
    return [
        Panel("calls", "Tool calls per completion", _trained_and_held_out(rows, names.TOOL_CALLS, names.CALLS)),
        Panel("call_failures", "Failed calls", _lines(rows, ("training", names.TOOL_FAILURES)), "percent", "Of calls."),
        Panel("turns", "Turns per episode", _trained_and_held_out(rows, names.ENVIRONMENT_TURNS, names.TURNS)),
        Panel(
            "environment_seconds",
            "Seconds in tools and environment",
            _trained_and_held_out(rows, names.ENVIRONMENT_SECONDS, names.SECONDS),
            "seconds",
            seconds,
        ),
        Panel("lost_episodes", "Episodes lost", _lines(rows, *lost), note="Per step, over all processes."),
        Panel("ends", "How held-out episodes ended", ends, "percent", stacked=True, held_out=True),
    ]


def _divergence(rows: Sequence[Row], config: Mapping[str, Any]) -> list[Panel]:
    kl = (config.get("objective") or {}).get("kl") or {}
    target = kl.get("kl_target") if kl.get("controller") == "adaptive" else None
    beta = series(rows, names.BETA)
    return [
        Panel(
            "kl",
            "KL to the reference model",
            _lines(rows, ("KL", names.KL)),
            note="Per token, in nats." + (" Dashed: the target." if target is not None else ""),
            target=target,
        ),
        Panel("beta", "KL coefficient β", [Series("β", beta, 1, smooth=False)]),
    ]


def _sampler(rows: Sequence[Row]) -> list[Panel]:
    parts = [(part.rpartition("/")[2].replace("_", " "), part) for part in names.SAMPLING_GAP_PARTS]
    ratios = [(end, f"{names.SAMPLING_RATIO}{end}") for end in ("mean", "min", "max")]
    outside = f"{names.SAMPLING_RATIO}outside"
    return [
        Panel(
            "sampler_gap",
            "Sampler's log-probs against the trainer's",
            _lines(rows, ("difference", names.SAMPLING_GAP), *parts),
            note="Mean absolute difference per token in nats. With one support, truncation is no part of it.",
        ),
        Panel(
            "sampler_ratio",
            "Ratio of the trainer's probability to the sampler's",
            _lines(rows, *ratios),
            note="Per token, before clipping or masking.",
            from_zero=False,
        ),
        Panel("sampler_outside", "Corrected ratios", _lines(rows, ("outside", outside)), "percent", "Out of bounds."),
    ]


def _optimiser(rows: Sequence[Row]) -> list[Panel]:
    clipped = _lines(rows, ("either", names.CLIP_REGION), ("low", names.CLIP_LOW), ("high", names.CLIP_HIGH))
    supervised = any(names.TOKEN_ACCURACY in row for row in rows)
    return [
        Panel("clip", "Clipped tokens", clipped, "percent", "Probability ratio outside the clipping range."),
        Panel("grad_norm", "Gradient norm", _lines(rows, ("norm", names.GRAD_NORM))),
        Panel(
            "loss",
            "Loss",
            _lines(rows, ("loss", names.LOSS)),
            note="Per token." if supervised else "No measure of progress: advantages are relative to the group.",
            from_zero=False,
        ),
        Panel("learning_rate", "Learning rate", [Series("rate", series(rows, names.LEARNING_RATE), smooth=False)]),
    ]


_OF_OBJECTIVES = {
    names.INCORRECT_MASS: ("Weight on wrong completions", "percent"),
    names.LENGTH_TILT: ("Mean length under the weights, relative to the plain one, less 1", "percent"),
    names.LOG_ODDS: ("Log-odds of a right completion to a wrong one", "number"),
    names.EXCLUDED: ("Excluded completions", "number"),
}
"""Titles and units of the metrics that every objective has."""


def _objective(rows: Sequence[Row]) -> list[Panel]:
    """MaxEnt's, and one panel for each other metric of the objective that is not 0 throughout: a user's own has any."""
    shown = (names.BETA, names.TARGET_ENTROPY, names.EFFECTIVE_COMPLETIONS, names.WEIGHT_ON_CORRECT)
    found = dict.fromkeys(name for row in rows for name in row if name.startswith(names.OBJECTIVE) and row[name])
    labels = {name: name.removeprefix(names.OBJECTIVE) for name in found if name not in shown}
    return [
        Panel("target_entropy", "Entropy of the target", _lines(rows, ("H(w)", names.TARGET_ENTROPY)), note="In nats."),
        Panel("effective", "Effective completions", _lines(rows, ("exp H(w)", names.EFFECTIVE_COMPLETIONS))),
        Panel("weight", "Weight on correct answers", _lines(rows, ("weight", names.WEIGHT_ON_CORRECT)), "percent"),
        *(
            Panel(f"objective-{label}", title, _lines(rows, (label, name)), unit)
            for name, label in labels.items()
            for title, unit in [_OF_OBJECTIVES.get(name, (label, "number"))]
        ),
    ]


def vocabulary_panels(rows: Sequence[Row]) -> list[Panel]:
    """Shares of thinking tokens and reasoning tokens; empty for a run without a reasoning vocabulary."""
    reasoning = _lines(rows, ("of thinking tokens", names.REASONING_SHARE))
    thinking = _lines(rows, ("of all tokens", names.THINKING_SHARE))
    return [
        Panel("reasoning", "Reasoning tokens", reasoning, "percent", "Share of the tokens between the thinking tags."),
        Panel("thinking", "Thinking", thinking, "percent", "Share of tokens between the thinking tags."),
    ]


def _stages(rows: Sequence[Row]) -> Panel:
    lines = _lines(rows, *STAGES)
    known: dict[int, float] = {}
    for step, seconds in (point for one in lines for point in one.points):
        known[step] = known.get(step, 0.0) + seconds
    times = series(rows, names.STEP_TIME)
    rest: list[Point] = [(step, max(0.0, seconds - known.get(step, 0.0))) for step, seconds in times]
    if any(one.points for one in lines):
        lines.append(Series("other", rest, 5))
    else:
        lines = [Series("step", series(rows, names.STEP_TIME))]
    return Panel("stages", "Step time by stage", lines, "seconds", stacked=len(lines) > 1)


def _use(rows: Sequence[Row]) -> list[Panel]:
    speed = _lines(rows, ("completions/s", names.COMPLETIONS_PER_SECOND))
    used = _lines(rows, ("process", names.PROCESS_MEMORY), ("device", names.DEVICE_MEMORY))
    memory = [replace(one, smooth=False) for one in used]
    return [
        Panel("throughput", "Completions per second", speed),
        Panel("memory", "Peak memory", memory, "bytes", "Maximum so far."),
    ]


COLOURS = 8
"""Size of the page's palette; further series reuse it."""
MOST_POINTS = 4000
"""A longer series has means of this many equal parts at most."""


def chart_data(sections: Sections, runs: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Everything that `covey.charts` needs.

    Args:
        sections: headings with their panels.
        runs: the rows of each run, in the order of `Series.run`.
    """
    return {
        "axes": [axes(rows) for rows in runs],
        "sections": [[heading, [panel_data(panel) for panel in panels]] for heading, panels in sections],
    }


def panel_data(panel: Panel) -> dict[str, Any]:
    """A panel with its curves."""
    return {
        "key": panel.key,
        "title": panel.title,
        "note": panel.note,
        "unit": panel.unit,
        "stacked": panel.stacked,
        "from_zero": panel.from_zero,
        "target": panel.target,
        "series": [_series(one) for one in panel.series],
    }


def axes(rows: Sequence[Row]) -> dict[str, list[float]]:
    """The steps, and what a run had spent at each: seconds of its steps and evaluations, and tokens.

    An axis is empty if the run did not log it.
    """
    stride = max(1, -(-len(rows) // MOST_POINTS))
    kept = sorted({*range(0, len(rows), stride), *([len(rows) - 1] if rows else [])})
    timed = [row[names.STEP] for row in rows if _number(row.get(names.STEP_TIME))]
    steps = {later: later - step for step, later in pairwise([0, *timed])}  # of which each row is the mean
    if len(timed) > 1:  # the first one's may not be the first of the training
        steps[timed[0]] = min(timed[0], steps[timed[1]])
    times = (
        _number(row.get(names.STEP_TIME)) * steps.get(row[names.STEP], 1) + _number(row.get(names.EVALUATION_TIME))
        for row in rows
    )
    tokens = accumulate((_number(row.get(names.TOKENS)) for row in rows), max)
    measured = {"seconds": list(accumulate(times)), "tokens": list(tokens)}
    found = {name: [round(values[at], 2) for at in kept] if any(values) else [] for name, values in measured.items()}
    return {"step": [rows[at][names.STEP] for at in kept], **found}


def _number(value: Any) -> float:
    """A logged value; 0 for what is none."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _series(one: Series) -> dict[str, Any]:
    points = _thinned(one.points)
    shown: dict[str, Any] = {
        "label": one.label,
        "colour": f"var(--c{one.colour % COLOURS})",
        "run": one.run,
        "smooth": one.smooth,
        "steps": [step for step, _ in points],
        "values": [_short(value) for _, value in points],
    }
    if one.low and len(one.low) == len(one.high) == len(one.points):
        shown["low"] = [_short(value) for _, value in _thinned(one.low)]
        shown["high"] = [_short(value) for _, value in _thinned(one.high)]
    if len(points) < len(one.points):
        shown["every"] = _stride(one.points)
    return shown


def _stride(points: Sequence[Point]) -> int:
    return max(1, -(-len(points) // MOST_POINTS))


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    stride = _stride(points)
    if stride == 1:
        return points
    parts = (points[start : start + stride] for start in range(0, len(points), stride))
    return [(part[-1][0], fmean(value for _, value in part)) for part in parts]


def _short(value: float) -> float:
    return float(f"{value:.5g}")
