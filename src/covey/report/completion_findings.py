"""What findings are made of, and the rules about completions, grading, tools and environments.

The other rules are in `covey.report.findings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import itemgetter
from statistics import fmean
from typing import Any, Literal

from covey.answers import Outcome, Tags, holds_gold_value, repeats_prompt
from covey.errors import RunDirectoryError
from covey.report.load import RunRecord, read_fold_gap, read_mapping
from covey.report.panels import Point
from covey.report.summary import Change, change_between, evaluations
from covey.rewards.reward import completion_text, gold_text, last_user_message
from covey.runlog import RunDirectory, names, read_completions
from covey.runlog.completions import completion_files
from covey.runlog.evaluations import read_completions as read_evaluated
from covey.runlog.evaluations import training_files
from covey.runlog.metrics import Row, series

Level = Literal["good", "note", "warn"]

MIN_STEPS = 20
"""Points that a rule about a trend needs."""
_FILES = 5
"""Files of completions that are searched for an example."""
_SHOWN = 80
"""Characters of an example."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis."""

    level: Level
    title: str
    """What it says, in a few words."""
    figure: str
    """The number it is based on."""
    text: str
    """What it means, and what would help."""
    rule: str = ""
    """The name of the rule's function."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rules look at."""

    rows: Sequence[Row]
    config: Mapping[str, Any]
    change: Change | None = None
    """From the first to the last evaluation on the main held-out set."""
    since_best: Change | None = None
    """From the best evaluation after the first to the last, if the best is above the first and not the last."""
    candidates: int = 1
    """The evaluations that could have been the best."""
    fold_gap: Mapping[str, Any] = field(default_factory=dict)
    """What `covey vocab --fold-gap` found on each held-out set."""
    audit: Mapping[str, Any] = field(default_factory=dict)
    """What `covey audit` found, where the run is that of an audit."""
    completions: Callable[[], Iterable[Mapping[str, Any]]] = tuple
    """The completions of the last steps that have any on disk, newest first."""

    @classmethod
    def of(cls, record: RunRecord, changed: Sequence[Change]) -> Evidence:
        """The evidence of a run; reads the completions of its best evaluation."""
        found, gap, newest = evaluations(record), read_fold_gap(record.run.root), partial(_newest, record.run)
        if not changed or len(found) < 2:
            audit = read_mapping(record.run.audit)
            return cls(record.rows, record.config, fold_gap=gap, audit=audit, completions=newest)
        change = changed[0]
        key = names.eval_name(change.held_out, change.metric)
        best = max(found[1:], key=lambda row: float(row[key]))
        later = best is not found[-1] and best[key] > found[0][key]
        since = change_between(record, change.held_out, best, found[-1]) if later else None
        return cls(record.rows, record.config, change, since, len(found) - 2, gap, completions=newest)

    def example(self, shown: Callable[[str, str, str | None, Tags], bool], right: bool = False) -> str:
        """A completion for which `shown` holds, in words; empty where none is found.

        Args:
            shown: takes the last user message, the completion's text, the gold answer, and the tags.
            right: look at right ones only.
        """
        rewards = self.config.get("rewards") or {}
        tags = Tags(str(rewards.get("think_tag") or "think"), str(rewards.get("answer_tag") or "answer"))
        for row in self.completions():
            asked, text = last_user_message(row.get(names.COLUMN_PROMPT)), completion_text(row[names.COLUMN_COMPLETION])
            gold = gold_text(row)
            if (not right or row.get(names.COLUMN_OUTCOME) == Outcome.RIGHT) and shown(asked, text, gold, tags):
                said, question, answer = (" ".join(one.split()) for one in (text, asked, gold or ""))
                said, question = (one if len(one) <= _SHOWN else f"…{one[-_SHOWN:]}" for one in (said, question))
                return f", as in “{said}” for “{question}”" + (f", whose answer is {answer[:_SHOWN]}" if answer else "")
        return ""

    @property
    def fewest(self) -> int:
        """Steps from which their completions are judged: an audit may have one, which holds all."""
        return 1 if self.audit else 3

    def value(self, key: str) -> Any:
        """The value of `group.name` in the run's config; None where it has none."""
        group, _, name = key.partition(".")
        return (self.config.get(group) or {}).get(name)

    @property
    def improved(self) -> bool:
        """Whether the held-out figure rose, by the paired test."""
        return self.change is not None and self.change.verdict > 0


def _newest(run: RunDirectory) -> Iterator[dict[str, Any]]:
    trained = [(file, read_completions) for _, file in completion_files(run.completions)]
    held_out = [(file, read_evaluated) for *_, file in sorted(training_files(run.root), key=itemgetter(1))]
    for file, read in reversed([*held_out[-_FILES:], *trained[-_FILES:]]):
        try:
            yield from read(file)
        except RunDirectoryError:  # damaged: then there is no example from it
            continue


Rule = Callable[[Evidence], Finding | None]


def ends(points: Sequence[Point]) -> tuple[float, float]:
    """The means of the first and of the last fifth."""
    part = max(3, len(points) // 5)
    return fmean(value for _, value in points[:part]), fmean(value for _, value in points[-part:])


def noise(points: Sequence[Point]) -> float:
    """The mean absolute change from one point to the next."""
    return fmean(abs(b - a) for (_, a), (_, b) in pairwise(points))


def ten_steps_of_all(points: Sequence[Point]) -> int | None:
    """The index from which a share is 1 to the end, for ten steps or more; None if there is none."""
    start = len(points)
    while start and points[start - 1][1] >= 1:
        start -= 1
    before = points[start - 1][0] if start else 0
    return start if start < len(points) and points[-1][0] - before >= 10 else None


def since(points: Sequence[Point], holds: Callable[[float], bool]) -> int | None:
    """The index from which the condition holds to the end for the mean of five points; None if there is none."""
    start = None
    for at in range(len(points)):
        here = [value for _, value in points[max(0, at - 2) : at + 3]]
        start = (at if start is None else start) if holds(fmean(here)) else None
    return start


_FEW = 0.05
"""A share among fewer right completions than this share of a batch is noise."""


def completions_empty(run: Evidence) -> Finding | None:
    """Half or more of the last completions say nothing."""
    last = [value for _, value in series(run.rows, names.EMPTY)][-10:]
    if len(last) < run.fewest or (late := fmean(last)) < (0.1 if run.audit else 0.5):
        return None
    return Finding(
        "warn",
        "Most completions are empty" if late >= 0.5 else "Completions are empty",
        f"{late:.0%} of completions",
        "They have no text after the thinking. Where rewards punish length or wrong answers (cosine_scaled, len), this "
        "earns more than an honest wrong answer: punish less, or give right answers (accuracy) more weight.",
    )


_NEARLY_ALL = 0.95
_MISSED = {
    Outcome.UNPARSABLE_PREDICTION: (
        "state no answer that the grader can read",
        "Ask for the form that it reads in the prompt (dataset.system_prompt), and see that completions are not cut "
        "off (training.max_completion_length).",
    ),
    Outcome.WRONG_FORM: (
        "state an answer, but in another form than the grader's",
        "Show the form in the prompt (dataset.system_prompt), or take a grader that reads any, such as accuracy.",
    ),
    Outcome.UNEVALUATED: (
        "leave the answer to be worked out, or copy it out of the question",
        "Ask for the final answer alone in the prompt (dataset.system_prompt).",
    ),
}
"""What the completions of an outcome do that can earn nothing, and what would be right."""


def answers_missed(run: Evidence) -> Finding | None:
    """Nearly all of the last completions have one outcome that no right answer can have."""
    for outcome, (what, cure) in _MISSED.items():
        last = [value for _, value in series(run.rows, names.grader_name(outcome))][-10:]
        if len(last) >= run.fewest and (late := fmean(last)) >= _NEARLY_ALL:
            text = f"They {what}, so there is nothing to learn from. {cure} Read a few completions below."
            return Finding("warn", "Hardly any answer can be graded", f"{late:.0%} {outcome.replace('_', ' ')}", text)
    return None


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


def grader_lost(run: Evidence) -> Finding | None:
    """The share of gradings that timed out or crashed, over the whole run."""
    lost = {outcome: _share(run, outcome) for outcome in (Outcome.TIMED_OUT, Outcome.CRASHED)}
    share = sum(lost.values())
    if share < 0.001:
        return None
    return Finding(
        "warn" if share >= 0.01 else "note",
        "Gradings were lost",
        f"{share:.1%} of gradings",
        f"{lost[Outcome.TIMED_OUT]:.1%} of gradings timed out and {lost[Outcome.CRASHED]:.1%} crashed: such "
        "completions get no reward, and held-out ones count as wrong. Filter for these outcomes below, and see "
        + ("environment.timeout." if (run.config.get("environment") or {}).get("factory") else "rewards.timeout."),
    )


def gold_unreadable(run: Evidence) -> Finding | None:
    """Gold answers that the grader cannot parse."""
    share = _share(run, Outcome.UNPARSABLE_GOLD)
    if share < 0.001:
        return None
    return Finding(
        "warn",
        "Unparsable gold answers",
        f"{share:.1%} of gradings",
        "The grader cannot parse some of the dataset's gold answers (or gives None), so completions for them cannot be "
        "graded. " + ("Filter for this outcome below." if run.audit else "`covey doctor` lists the rows."),
    )


def _share(run: Evidence, outcome: Outcome) -> float:
    """The share of gradings with this outcome, in training or on the main held-out set, whichever is larger."""
    trained = [value for _, value in series(run.rows, names.grader_name(outcome))]
    (held_out, *_) = (*names.held_out_sets(run.rows), names.TEST_SET)
    evaluated = [row for row in run.rows if row.get(names.eval_name(held_out, names.FORMAT)) is not None]
    counted = [float(row.get(names.eval_name(held_out, names.grader_name(outcome))) or 0.0) for row in evaluated]
    return max(fmean(values) if values else 0.0 for values in (trained, counted))


def copied_prompt(run: Evidence) -> Finding | None:
    """Completions repeat the prompt, more and more, or half of them do."""
    for points in _watched(run, f"train/{names.REPEATS_PROMPT}", names.REPEATS_PROMPT):
        early, late = ends(points)
        if late < (0.1 if run.audit else 0.5) and late - early < 0.1:
            continue
        example = run.example(lambda asked, text, gold, tags: repeats_prompt(text, asked, gold, tags))
        return Finding(
            "warn",
            "Completions repeat the prompt",
            f"{early:.0%} → {late:.0%} of completions",
            f"Their final text is a piece of the question, which no work was done for{example}. Read what the rewards "
            "gave for it: a grader that evaluates (rewards.unevaluated=accept), or a reward of your own, may pay for "
            "it, and then a rising accuracy means nothing.",
        )
    return None


def gold_value_missing(run: Evidence) -> Finding | None:
    """Right completions hardly hold the gold answer's value, or less and less."""
    for points in _watched(run, names.GOLD_VALUE_SHARE, names.GOLD_VALUE_SHARE):
        early, late = ends(points)
        if late >= 0.7 and (late >= 0.9 or early - late < 0.1):
            continue
        example = run.example(
            lambda _, text, gold, __: gold is not None and holds_gold_value(text, gold) is False, True
        )
        return Finding(
            "warn",
            "Right answers without the gold value",
            f"{early:.0%} → {late:.0%} of right completions",
            f"No number in the others equals the gold answer, and the grader calls them right{example}. The policy may "
            "have found something that the grader evaluates or misreads: read completions that are right.",
        )
    return None


def _watched(run: Evidence, trained: str, held_out: str) -> list[list[Point]]:
    """The points of a sign in training, and on the main held-out set, where there are enough."""
    (main, *_) = (*names.held_out_sets(run.rows), names.TEST_SET)
    right = dict(series(run.rows, names.grader_name(Outcome.RIGHT)))
    of_right = trained == names.GOLD_VALUE_SHARE
    points = [one for one in series(run.rows, trained) if not of_right or right.get(one[0], 1.0) >= _FEW]
    found = (points, run.fewest), (series(run.rows, names.eval_name(main, held_out)), 2)
    return [points for points, fewest in found if len(points) >= fewest]


def rewards_disagree(run: Evidence) -> Finding | None:
    """Of an audit: what the rewards and the grader disagree on, or why they could not be compared."""
    audit = run.audit
    if not audit:
        return None
    if audit["disagreements"] is None:
        lacking = [what for what in ("reward", "gold") if what not in audit["columns"]]
        text = " ".join(f"--{what} NAME names the column." for what in lacking)
        text += " --gold FILE reads the answers from a file of questions and answers." if "gold" in lacking else ""
        unread = "gold answer" if audit.get("largest_reward") is not None else "reward"
        figure = f"no column of {' and '.join(lacking)}" if lacking else f"no {unread} can be read"
        return Finding("note", "The rewards were not checked", figure, text)
    parts = []
    for kind, count in audit["kinds"].items():
        one = next(one for one in audit["disagreements"] if one["disagreement"] == kind)
        gold, stated = (" ".join(str(one[name] or "nothing").split())[:_SHOWN] for name in ("gold", "extracted"))
        what = f"the reward is {one['reward']:g} for “{stated}”, and the gold answer “{gold}”"
        parts.append(f"{count:,} {kind}: in row {one['row']} of {one['file'].rpartition('/')[2]}, {what}.")
    if not parts:
        text = f"Every one is as the grader {audit['grader']} says."
        return Finding(
            "good", "The rewards agree with the grader", f"{audit.get('compared', audit['graded']):,} rollouts", text
        )
    if audit["largest_reward"] < audit["right_at"]:
        parts.append(f"The largest reward is below {audit['right_at']:g}: --right says from which an answer is right.")
    figure = f"{sum(audit['kinds'].values()):,} of {audit.get('compared', audit['graded']):,} rollouts"
    return Finding("warn", "Rewards and grader disagree", figure, " ".join(parts))


def groups_without_signal(run: Evidence) -> Finding | None:
    """Of an audit: groups whose completions all got the same reward."""
    flat, groups = run.audit.get("groups_without_signal"), run.audit.get("groups")
    if not flat or not groups:
        return None
    solved = run.audit["solved_without_signal"]
    text = "All their completions got the same reward, so they teach nothing. "
    text += f"Rewarded throughout: {solved:,}, for which harder problems would help. " * (solved > 0)
    text += f"Not rewarded: {flat - solved:,}: easier ones, or more completions of each." * (flat > solved)
    level: Level = "warn" if flat >= 0.5 * groups else "note"
    return Finding(level, "Groups without signal", f"{flat:,} of {groups:,} groups", text)


def length_drift(run: Evidence) -> Finding | None:
    """Of an audit: completions grow or shrink by a fifth or more."""
    points = series(run.rows, names.CHARACTERS) if run.audit else []
    early, late = ends(points) if len(points) >= 6 else (points[0][1], points[-1][1]) if points else (0.0, 0.0)
    if early <= 1.2 * late and late <= 1.2 * early:
        return None
    passed = [f"{value:.0%}" for _, value in series(run.rows, f"{names.PASSED}1")]
    text = f"The share of right ones went from {passed[0]} to {passed[-1]}. " if passed else ""
    text += "A length that moves without it comes from the loss, or from a reward for length."
    title = f"Completions get {'longer' if late > early else 'shorter'}"
    return Finding("note", title, f"{early:,.0f} → {late:,.0f} letters", text)


def rewards_unread(run: Evidence) -> Finding | None:
    """Of an audit: rollouts whose reward is no number."""
    for place in run.audit.get("unread_at", ()):
        text = f"Their reward is NaN, infinite, null or text, first in {place} (row): they were not compared."
        figure = f"{run.audit['unread']:,} of {run.audit['rows']:,} rollouts"
        return Finding("warn", "Rewards that are no numbers", figure, text)
    return None


def prompts_repeat(run: Evidence) -> Finding | None:
    """Of an audit: a tenth or more of the groups repeat a prompt within a step, or there is one prompt in all steps."""
    audit = run.audit
    if audit.get("repeated", 0) < max(2, 0.1 * audit.get("asked", 0)):
        return None
    ((prompt, most),) = audit["most_asked"]
    text = f"{most:,} groups have one prompt, “{' '.join(prompt.split())[:_SHOWN]}”. Passes over the data do not "
    text += "explain this: rows repeat, a problem is drawn again, or the prompt lacks what differs."
    level: Level = "warn" if audit["repeated"] >= 0.5 * audit["asked"] else "note"
    return Finding(level, "Prompts repeat", f"{audit['asked']:,} groups, {audit['prompts']:,} prompts", text)


AUDIT_RULES: tuple[Rule, ...] = (rewards_disagree, rewards_unread, groups_without_signal, prompts_repeat, length_drift)
EPISODE_RULES: tuple[Rule, ...] = (tools_unused, calls_fail, episodes_lost, turn_limit, environment_slow)
GRADING_RULES: tuple[Rule, ...] = (
    *(copied_prompt, gold_value_missing, completions_empty, answers_missed, grader_lost, gold_unreadable),
)
