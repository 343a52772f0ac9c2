"""What findings are made of, what their rules look at, and how they read a curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import itemgetter
from statistics import fmean
from typing import Any, Literal

from covey.answers import Outcome, Tags
from covey.errors import RunDirectoryError
from covey.report.charts.series import Point
from covey.report.load import RunRecord, read_fold_gap
from covey.report.summary import Change, change_between, evaluations
from covey.rewards.reward import completion_text, gold_text, last_user_message
from covey.runlog import RunDirectory, names, read_completions
from covey.runlog.completions import completion_files
from covey.runlog.evaluations import read_completions as read_evaluated
from covey.runlog.evaluations import training_files
from covey.runlog.metrics import Row

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
    completions: Callable[[], Iterable[Mapping[str, Any]]] = tuple
    """The completions of the last steps that have any on disk, newest first."""

    @classmethod
    def of(cls, record: RunRecord, changed: Sequence[Change]) -> Evidence:
        """The evidence of a run; reads the completions of its best evaluation."""
        found, gap, newest = evaluations(record), read_fold_gap(record.run.root), partial(_newest, record.run)
        if not changed or len(found) < 2:
            return cls(record.rows, record.config, fold_gap=gap, completions=newest)
        change = changed[0]
        key = names.eval_name(change.held_out, change.metric)
        best = max(found[1:], key=lambda row: float(row[key]))
        later = best is not found[-1] and best[key] > found[0][key]
        since = change_between(record, change.held_out, best, found[-1]) if later else None
        return cls(record.rows, record.config, change, since, len(found) - 2, gap, newest)

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
