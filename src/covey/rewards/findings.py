"""What is found in a batch's rewards: outcomes as metrics, failures as warnings, and batches without any reward."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from covey.answers import Outcome
from covey.errors import RewardError
from covey.log_once import log_once
from covey.rewards.reward import content_text
from covey.rewards.workers.log_values import OWN, is_taken
from covey.rewards.workers.run_reward import LogEntry, SampleResult

_log = logging.getLogger("covey.rewards")
_SHOWN = 60  # characters of a prompt
_MAX_LISTED = 20  # rows in one message


@dataclass(frozen=True, slots=True)
class RewardProblem:
    """Why a reward is missing, for one row of the batch or (None) for all."""

    row: int | None
    cause: str
    trace: str = ""
    """Where it was raised, in the lines of a traceback."""


class Findings:
    """Reports the outcomes and failures of graders and reward functions.

    Args:
        on_error: `stop` raises at the first problem, `skip` logs the first one of each function.
    """

    def __init__(self, on_error: str) -> None:
        self._on_error = on_error
        self._unparsable: set[tuple[str, str]] = set()

    def outcomes(
        self,
        grader: str,
        results: Sequence[SampleResult],
        prompts: Sequence[Any],
        log_metric: Callable[[str, float], None] | None,
    ) -> None:
        """Log the share of each outcome as `grader/<outcome>`, and warn about unparsable gold answers and failures."""
        counts = Counter(result.outcome for result in results if result.outcome is not None)
        total = counts.total()
        if log_metric is not None and total:
            for outcome in Outcome:
                log_metric(f"grader/{outcome.value}", counts[outcome] / total)
        self._warn_unparsable_gold(grader, results, prompts)
        self._warn_failed(grader, results, prompts)

    def settle(
        self,
        name: str,
        values: list[float | None],
        problems: Sequence[RewardProblem],
        prompts: Sequence[Any],
        what: str = "reward",
    ) -> tuple[list[float | None], int]:
        """The rewards (or grades) of a function, None where it had a problem, and the number of these. Raises a
        `RewardError` if there is a problem, and `on_error` is `stop`."""
        count = len(prompts)
        whole = any(problem.row is None for problem in problems)
        failed = count if whole else len(problems)
        if not problems:
            return values, 0
        first = problems[0]
        where = "" if first.row is None else f" on row {first.row} of the batch ({shown_prompt(prompts[first.row])})"
        if self._on_error == "stop":
            error = RewardError(
                f"The {what} {name} failed{where}: {first.cause}. Fix the function, or set rewards.on_error=skip to "
                "leave such completions out and continue."
            )
            if first.trace:
                error.add_note(first.trace)  # for the log: a message is one paragraph
            raise error
        counted = "errors" if what == "reward" else Outcome.CRASHED
        text = (
            f"The {what} {name} failed{where}: {first.cause}. It gives nothing for {failed} of {count} completions of "
            f"this batch (rewards.on_error=skip); from now on such failures are only counted, as grader/{counted}."
        )
        log_once(_log, "%s", f"{text}\n{first.trace}".rstrip(), key=f"failed {what} {name}")
        if whole:
            return [None] * count, failed
        missing = {problem.row for problem in problems}
        return [None if row in missing else value for row, value in enumerate(values)], failed

    def warn_no_reward(self, name: str) -> None:
        """Warn once that a function gave no completion of a batch a reward, and did not fail."""
        text = (
            f"The reward {name} gave no completion of this batch a reward (all are None). If that stays so, the model "
            "learns nothing from it: it, or the columns that it reads, may not fit the data."
        )
        log_once(_log, "%s", text, key=f"none {name}")

    def log_name(self, entry: LogEntry, reward: str, taken: Collection[str], rewards: Collection[str]) -> str:
        """The name to log a reward's metric or column under: its own, unless that is taken.

        Args:
            entry: what the reward logged.
            reward: its name.
            taken: columns of this batch that other rewards have logged.
            rewards: the names of all rewards.
        """
        name = entry.name
        if is_taken(entry.function, name, rewards):
            name = f"{OWN}{name}"
        if entry.function == "log_extra" and name in taken:
            name = f"{OWN}{reward}/{entry.name}"
        if name != entry.name:
            log_once(
                _log,
                "The reward %s logs %r by %s, but that name is taken: it is logged as %r.",
                *(reward, entry.name, entry.function, name),
            )
        return name

    def warn_rejected(self, reward: str, unlogged: Sequence[str]) -> None:
        """Warn once about each log call of a reward that was rejected."""
        for text in unlogged:
            log_once(_log, "The reward %s: %s. It is not logged; the rewards still count.", reward, text)

    def _warn_unparsable_gold(self, grader: str, results: Sequence[SampleResult], prompts: Sequence[Any]) -> None:
        new = []
        for row, result in enumerate(results):
            if result.outcome is not Outcome.UNPARSABLE_GOLD:
                continue
            key = (grader, _prompt_text(prompts[row]))
            if key not in self._unparsable:
                self._unparsable.add(key)
                new.append(f"row {row} ({shown_prompt(prompts[row])})")
        for start in range(0, len(new), _MAX_LISTED):
            _log.warning(
                "%s cannot read the gold answer of %s, so completions of it get no reward (%d such problems so far).",
                *(grader, ", ".join(new[start : start + _MAX_LISTED]), len(self._unparsable)),
            )

    def _warn_failed(self, grader: str, results: Sequence[SampleResult], prompts: Sequence[Any]) -> None:
        for outcome in (Outcome.TIMED_OUT, Outcome.CRASHED):
            rows = [row for row, result in enumerate(results) if result.outcome is outcome]
            if rows:
                log_once(
                    _log,
                    "%s: %d of %d completions: %s; the first is row %d (%s): %s. From now on such completions are only "
                    "counted, as grader/%s.",
                    *(grader, len(rows), len(results), outcome.value.replace("_", " "), rows[0]),
                    *(shown_prompt(prompts[rows[0]]), results[rows[0]].cause, outcome.value),
                    key=f"{grader}/{outcome}",
                )


def shown_prompt(prompt: Any) -> str:
    """The first words of a prompt, quoted."""
    text = " ".join(_prompt_text(prompt).split())
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _prompt_text(prompt: Any) -> str:
    """A prompt's text; of a conversation, that of the last message."""
    return prompt if isinstance(prompt, str) else content_text(prompt[-1]) if prompt else ""


MAX_BATCHES = 20
"""The run is ended if none of its first batches, this many, has a reward."""

_NOTHING = (
    "No reward function gave any completion of this batch a reward (all are None), so the model learns nothing from "
    "it. The functions, or the columns that they read, may not fit the data."
)


class NoRewardCheck:
    """Warns at the first such batch, and ends a run that never sees a reward."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._has_rewarded = False

    def add(self, rewarded: bool) -> None:
        """Count one batch.

        Args:
            rewarded: whether any function gave any completion a reward.

        Raises:
            RewardError: no batch since the start had a reward.
        """
        self._has_rewarded |= rewarded
        self._in_a_row = 0 if rewarded else self._in_a_row + 1
        if rewarded:
            return
        log_once(_log, _NOTHING)
        if not self._has_rewarded and self._in_a_row >= MAX_BATCHES:
            raise RewardError(
                f"No reward function has given any completion a reward in {MAX_BATCHES} batches, so the model has "
                "learned nothing: rewards.funcs returned None (or failed, with rewards.on_error=skip) for all of them. "
                "Check what they return, and whether the data has the columns that they read (docs/custom_rewards.md)."
            )
