"""What is said about a batch's rewards: metrics of the outcomes, and what went wrong, named in the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covey.answers import Outcome
from covey.errors import RewardError
from covey.rewards.judging import Sampled
from covey.rewards.reward import completion_text

_log = logging.getLogger("covey.rewards")
_SHOWN = 60  # characters of a prompt
_MOST_NAMED = 20  # rows in one message


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no reward: for one row of the batch, or (None) for all of them."""

    row: int | None
    cause: str


class Findings:
    """Reports what graders and reward functions found.

    Args:
        on_error: `stop` raises at the first problem, `skip` logs the first one of each function and goes on.
    """

    def __init__(self, on_error: str) -> None:
        self._on_error = on_error
        self._said: set[str] = set()
        self._unparsable: set[tuple[str, str]] = set()
        self._lost: set[str] = set()

    def outcomes(
        self,
        grader: str,
        results: Sequence[Sampled],
        prompts: Sequence[Any],
        log_metric: Callable[[str, float], None] | None,
    ) -> None:
        """Log the share of each outcome as `grader/<outcome>`, and name what needs a look."""
        counts = Counter(result.outcome for result in results if result.outcome is not None)
        total = counts.total()
        if log_metric is not None and total:
            for outcome in Outcome:
                log_metric(f"grader/{outcome.value}", counts[outcome] / total)
        self._name_unparsable_gold(grader, results, prompts)
        self._name_lost(grader, results, prompts)

    def settle(
        self,
        name: str,
        values: list[float | None],
        problems: Sequence[Problem],
        prompts: Sequence[Any],
        log_metric: Callable[[str, float], None] | None,
    ) -> list[float | None]:
        """The rewards of a function, after its problems were dealt with.

        Raises:
            RewardError: there is one, and `on_error` is `stop`.
        """
        count = len(prompts)
        whole = any(problem.row is None for problem in problems)
        failed = count if whole else len(problems)
        if self._on_error == "skip" and log_metric is not None:
            log_metric("grader/errors", float(failed))
        if not problems:
            return values
        first = problems[0]
        where = "" if first.row is None else f" on row {first.row} of the batch ({shown_prompt(prompts[first.row])})"
        if self._on_error == "stop":
            raise RewardError(
                f"The reward {name} failed{where}: {first.cause}. Mend the function, or set rewards.on_error=skip to "
                "leave such rewards out and go on."
            )
        if name not in self._said:
            self._said.add(name)
            _log.warning(
                "The reward %s failed%s: %s. It gives nothing for %d of %d completions of this batch "
                "(rewards.on_error=skip); from now on such failures are only counted, as grader/errors.",
                *(name, where, first.cause, failed, count),
            )
        if whole:
            return [None] * count
        missing = {problem.row for problem in problems}
        return [None if row in missing else value for row, value in enumerate(values)]

    def _name_unparsable_gold(self, grader: str, results: Sequence[Sampled], prompts: Sequence[Any]) -> None:
        new = []
        for row, result in enumerate(results):
            if result.outcome is not Outcome.UNPARSABLE_GOLD:
                continue
            key = (grader, _text(prompts[row]))
            if key not in self._unparsable:
                self._unparsable.add(key)
                new.append(f"row {row} ({shown_prompt(prompts[row])})")
        for start in range(0, len(new), _MOST_NAMED):
            _log.warning(
                "%s cannot read the gold answer of %s, so completions of it get no reward (%d such problems so far).",
                *(grader, ", ".join(new[start : start + _MOST_NAMED]), len(self._unparsable)),
            )

    def _name_lost(self, grader: str, results: Sequence[Sampled], prompts: Sequence[Any]) -> None:
        for outcome in (Outcome.TIMED_OUT, Outcome.CRASHED):
            rows = [row for row, result in enumerate(results) if result.outcome is outcome]
            key = f"{grader}/{outcome}"
            if rows and key not in self._lost:
                self._lost.add(key)
                _log.warning(
                    "%s: %d of %d completions: %s; the first is row %d (%s): %s. From now on such completions are only "
                    "counted, as grader/%s.",
                    *(grader, len(rows), len(results), outcome.value.replace("_", " "), rows[0]),
                    *(shown_prompt(prompts[rows[0]]), results[rows[0]].cause, outcome.value),
                )


def shown_prompt(prompt: Any) -> str:
    """The first words of a prompt, quoted."""
    text = " ".join(_text(prompt).split())
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _text(prompt: Any) -> str:
    return completion_text(prompt)  # of a conversation, what was said last
