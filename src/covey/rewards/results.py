"""What the results of workers say: values, problems, and what a grader says about its grades."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.answers import Outcome
from covey.rewards.findings import RewardProblem
from covey.rewards.reward import Graded, Reward
from covey.rewards.workers.run_reward import CallResult, SampleResult
from covey.runlog import names


def one_of(columns: Sequence[str]) -> str:
    """`answer`, or `answer (or solution)`."""
    return columns[0] + (f" (or {', '.join(columns[1:])})" if columns[1:] else "")


def detail(result: SampleResult) -> str:
    """What a grader says about a grade; the cause of a failure is logged already."""
    return "" if result.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT) or result.refused else result.cause


def right_mode(outcome: Outcome | None, mode: str | None) -> str | None:
    """The mode of a right answer; None of any other, whatever its grader calls it."""
    return mode if outcome is Outcome.RIGHT else None


def logged_modes(called: CallResult) -> list[str | None] | None:
    """The modes that a function of whole batches logged; None if it logged none."""
    return next((entry.value for entry in called.logged if entry[:2] == ("log_extra", names.MODE)), None)


def values_of(
    reward: Reward, prompts: Sequence[Any], completions: Sequence[Any], results: Sequence[SampleResult]
) -> list[float | None]:
    """The rewards that follow from grades."""
    if reward.from_grades is None:
        return [result.value for result in results]
    return reward.from_grades(prompts, completions, [Graded(result.value, result.outcome) for result in results])


def call_problems(called: CallResult) -> list[RewardProblem]:
    """The rows without a valid value; or one problem if the call failed."""
    if called.failure:
        return [RewardProblem(None, called.failure, called.trace)]
    return [RewardProblem(*bad) for bad in called.bad]


def grading_problems(results: Sequence[SampleResult]) -> list[RewardProblem]:
    """Rows that the grader refused; or one problem if it crashed on all rows, which is not the completions' fault."""
    problems = [RewardProblem(row, result.cause) for row, result in enumerate(results) if result.refused]
    if not problems and results and all(result.outcome is Outcome.CRASHED for result in results):
        return [RewardProblem(None, f"it crashed on every completion of the batch; on the first: {results[0].cause}")]
    return problems
