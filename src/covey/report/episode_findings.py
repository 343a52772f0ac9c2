"""Rules about empty completions, tools and environments, see `covey.report.findings`."""

from __future__ import annotations

from statistics import fmean

from covey.report.evidence import MIN_STEPS, Evidence, Finding, Rule, since
from covey.runlog import names
from covey.runlog.metrics import series


def completions_empty(run: Evidence) -> Finding | None:
    """Half or more of the last completions say nothing."""
    last = [value for _, value in series(run.rows, names.EMPTY)][-10:]
    if len(last) < 3 or (late := fmean(last)) < 0.5:
        return None
    return Finding(
        "warn",
        "Most completions are empty",
        f"{late:.0%} of completions",
        "They have no text after the thinking. Where rewards punish length or wrong answers (cosine_scaled, len), this "
        "earns more than an honest wrong answer: punish less, or give right answers (accuracy) more weight.",
    )


def tools_unused(run: Evidence) -> Finding | None:
    """Hardly any completion calls a tool: from the start, or, after calls were usual, from some step to the end."""
    points = series(run.rows, names.TOOL_CALLS)
    if len(points) < MIN_STEPS:
        return None
    usual = max(fmean(value for _, value in points[at : at + 5]) for at in range(len(points) - 4))
    last = fmean(value for _, value in points[-5:])
    if usual < 0.05:
        return Finding(
            "warn",
            "The model calls no tools",
            f"{fmean(value for _, value in points):.2g} calls per completion",
            "GRPO strengthens what is sampled now and then, and calls hardly are. Begin with a model that calls tools, "
            "tell it of them in the prompt (dataset.system_prompt), or raise training.temperature.",
        )
    start = since(points, lambda value: value <= 0.1 * usual)
    if start is None:
        return None
    while start and points[start - 1][1] <= 0.1 * usual:  # the mean of five falls later than the values
        start -= 1
    if len(points) - start < MIN_STEPS // 2:
        return None
    step = points[start][0]
    return Finding(
        "note" if run.improved else "warn",
        f"The model stopped calling tools at step {step}",
        f"{usual:.2g} → {last:.2g} calls per completion",
        f"From step {step} on, completions have at most a tenth of the calls that they once had. "
        + (
            "The held-out figure rose all the same: the tools may not be needed. "
            if run.improved
            else "Read completions of that step: calls that fail or time out, or answers that are rewarded without. "
        )
        + "A reward that counts calls, or a smaller learning rate, would keep them.",
    )


def calls_fail(run: Evidence) -> Finding | None:
    """Half or more of the last calls failed: no such tool, wrong arguments, or the tool raised."""
    called = dict(series(run.rows, names.TOOL_CALLS))
    points = [(step, share) for step, share in series(run.rows, names.TOOL_FAILURES) if called.get(step, 0.0) > 0]
    if len(points) < 3:
        return None
    late = fmean(value for _, value in points[-10:])
    if late < 0.5:
        return None
    return Finding(
        "warn",
        "Most calls fail",
        f"{late:.0%} of calls",
        f"Of the last calls {late:.0%} failed: the tool raised, the arguments were wrong, or there is no such tool. "
        "Filter for failed calls below and read the results; a docstring that says what a tool takes, and errors that "
        "say what would be right, help the model.",
    )


def episodes_lost(run: Evidence) -> Finding | None:
    """A thousandth or more of the episodes ended by a deadline or a crash, over the run or in evaluations."""
    completions = sum(
        row[names.COMPLETIONS_PER_SECOND] * row[names.STEP_TIME]
        for row in run.rows
        if row.get(names.COMPLETIONS_PER_SECOND) is not None and row.get(names.STEP_TIME) is not None
    )
    lost = {}
    for end, metric in ((names.TIMED_OUT, names.ENVIRONMENT_TIMEOUTS), (names.CRASHED, names.ENVIRONMENT_CRASHES)):
        count = sum(value for _, value in series(run.rows, metric))
        (held_out, *_) = (*names.held_out_sets(run.rows), names.TEST_SET)
        evaluated = series(run.rows, names.eval_name(held_out, f"{names.EPISODE}{end}"))
        shares = [fmean(value for _, value in evaluated)] if evaluated else []
        lost[end] = max([count / completions if completions else 0.0, *shares])
    share = sum(lost.values())
    if share < 0.001:
        return None
    most = names.TIMED_OUT if lost[names.TIMED_OUT] >= lost[names.CRASHED] else names.CRASHED
    return Finding(
        "warn" if share >= 0.01 else "note",
        "Episodes time out" if most == names.TIMED_OUT else "Episodes crash",
        f"{share:.1%} of episodes",
        f"{lost[names.TIMED_OUT]:.1%} of episodes timed out and {lost[names.CRASHED]:.1%} crashed: their environments "
        "reward them with 0, or not at all if the start failed. Filter for these endings below, and see "
        "environment.timeout, environment.episode_timeout and environment.memory_mb.",
    )


def turn_limit(run: Evidence) -> Finding | None:
    """A tenth or more of the last held-out episodes were still calling tools at their last turn."""
    (held_out, *_) = (*names.held_out_sets(run.rows), names.TEST_SET)
    points = series(run.rows, names.eval_name(held_out, f"{names.EPISODE}max_turns"))
    if not points or points[-1][1] < 0.1:
        return None
    limit = (run.config.get("environment") or {}).get("max_turns")
    return Finding(
        "warn",
        "Episodes end at the turn limit",
        f"{points[-1][1]:.0%} of held-out episodes",
        f"They still called a tool in their last turn{f' of {limit}' if limit else ''}, so the model never answered. "
        "Raise environment.max_turns, or reward shorter episodes.",
    )


def environment_slow(run: Evidence) -> Finding | None:
    """Half or more of the step time is spent waiting for tools and environments."""
    total = sum(value for _, value in series(run.rows, names.STEP_TIME))
    waited = sum(value for _, value in series(run.rows, names.ENVIRONMENT_TIME))
    if not total or len(series(run.rows, names.ENVIRONMENT_TIME)) < 3 or waited < 0.5 * total:
        return None
    return Finding(
        "warn",
        "The environment takes most of the step",
        f"{waited / total:.0%} of step time",
        "The model waits for its tools for longer than it samples and learns. Calls of different episodes run at once, "
        "so larger batches, a faster tool, or fewer turns (environment.max_turns) help.",
    )


EPISODE_RULES: tuple[Rule, ...] = (
    completions_empty,
    tools_unused,
    calls_fail,
    episodes_lost,
    turn_limit,
    environment_slow,
)
