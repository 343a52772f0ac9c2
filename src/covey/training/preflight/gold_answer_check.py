"""Whether the gold answers of the data earn the rewards of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.answers import Outcome, Tags
from covey.answers.tasks import MODES
from covey.config import Config
from covey.evaluation.grading import grader_name
from covey.rewards import RewardSettings, find
from covey.rewards.runner import RewardRunner
from covey.training.preflight.findings import SAMPLE, Mark, PreflightFinding
from covey.training.preflight.reward_calls import PROMPTS, own_functions, try_calls

if TYPE_CHECKING:
    from covey.data import LoadedData

_FEW = 0.05  # share of unscorable rows up to which this is a warning only
_UNLIKELY = "-9786.13451"  # answer
_LISTED = 30  # rows that one finding names


def check_answers(
    config: Config, loaded: LoadedData, encode: Callable[[str], Sequence[int]], output: Path | None = None
) -> Iterator[PreflightFinding]:
    """Whether each gold answer, put into the expected format, is right by the rewards and the grader of the run, and
    whether the user's own can be called with it.

    Args:
        encode: gives the token ids of a completion.
        output: the file to append what rewards print to; None: standard error.
    """
    settings = RewardSettings.of(config.rewards, config.training.max_completion_length)
    tags = Tags(config.rewards.think_tag, config.rewards.answer_tag)
    found = [find(name, settings) for name in config.rewards.funcs]
    graders = {reward.graded_by or reward.name for reward in found if reward.sample or reward.graded_by}
    grader = grader_name(config)
    graders |= {grader} if grader is not None and ":" not in grader else set()
    graders -= {"code"}  # its rows have tests, and no program that passes them
    without = replace(config.rewards, funcs=())  # graders and calls go to the workers by name
    with RewardRunner.of(without, max_completion_length=config.training.max_completion_length) as runner:
        if own_functions(config):
            runner.pool.start(output)
            few = list(loaded.train.select(range(min(PROMPTS, len(loaded.train)))))
            texts = [gold_completion({"answer": "42", **row}, tags, str(grader)) for row in few]
            yield from try_calls(config, few, texts, runner, encode)
        for name, rows in {"train": loaded.train, **loaded.evaluation}.items():
            sample = list(rows.select(range(min(SAMPLE, len(rows)))))
            for grader in sorted(graders):
                texts = [gold_completion(row, tags, grader) for row in sample]
                outcomes = [graded.outcome for graded in runner.grade(grader, texts, sample)]
                yield _gold_finding(f"{grader} on {name}", sample, outcomes)
                if grader == "accuracy":
                    other = gold_completion({"answer": _UNLIKELY}, tags, grader)
                    outcomes = [graded.outcome for graded in runner.grade(grader, [other] * len(sample), sample)]
                    yield from _unreadable_finding(f"{grader} on {name}", sample, outcomes)


def _gold_finding(check: str, rows: Sequence[Any], outcomes: Sequence[Outcome | None]) -> PreflightFinding:
    failed = [(n, o) for n, o in enumerate(outcomes) if o is not Outcome.RIGHT]
    if not failed:
        return PreflightFinding(Mark.FINE, check, f"all {len(rows)} gold answers score full marks")
    shown = "; ".join(f"row {n}: {str(rows[n]['answer'])[:60]!r} is {outcome}" for n, outcome in failed[:3])
    shown += _further_rows([n for n, _ in failed])
    return PreflightFinding(
        Mark.WRONG if len(failed) > _FEW * len(rows) else Mark.WARNING,
        check,
        f"{len(failed)} of {len(rows)} gold answers do not score full marks ({shown})",
        "Nothing can earn the reward on these rows: fix the answers, or dataset.answer_extractor.",
        name="gold_answers",
    )


def _further_rows(rows: Sequence[int]) -> str:
    others = ", ".join(map(str, rows[3:_LISTED]))
    return f"; also rows {others}{' and more' if len(rows) > _LISTED else ''}" if others else ""


def _unreadable_finding(
    check: str, rows: Sequence[Any], outcomes: Sequence[Outcome | None]
) -> Iterator[PreflightFinding]:
    """The rows whose gold answer cannot be parsed, so that no answer can be compared with it."""
    found = [n for n, outcome in enumerate(outcomes) if outcome is Outcome.UNPARSABLE_GOLD]
    if not found:
        return
    shown = "; ".join(f"row {n}: {str(rows[n]['answer'])[:60]!r}" for n in found[:3])
    yield PreflightFinding(
        Mark.WARNING,
        check,
        f"{len(found)} of {len(rows)} gold answers cannot be read as mathematics ({shown}{_further_rows(found)})",
        "On these rows only the identical text earns the reward: fix them.",
    )


def gold_completion(row: Any, tags: Tags, grader: str) -> str:
    """A completion in the expected format that gives the row's own answer, or one of the right ones."""
    answer = row["answer"]
    if grader in MODES:  # its answer is the task: a solution is a completion
        answer = row.get("solution") or next(iter(MODES[grader](answer) or ()), answer)
    return f"<{tags.think}>\nAs given.\n</{tags.think}>\n<{tags.answer}>{answer}</{tags.answer}>"
