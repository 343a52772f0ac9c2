"""Graded completions of held-out problems, and how a batch of completions becomes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from covey.answers import (
    Outcome,
    Tags,
    extract_prediction,
    grade_exact,
    has_reasoning_format,
    holds_gold_value,
    repeats_prompt,
)
from covey.answers.maths.numbers import read_number
from covey.data.columns import number_of_modes
from covey.evaluation.completions.played import played_of
from covey.evaluation.completions.transcript import transcript
from covey.rewards.reward import last_user_message, whole_answers
from covey.runlog import names

if TYPE_CHECKING:
    from covey.rollout import Completion

_NEAR = 10  # partial accuracy accepts a tenth of the answer


@dataclass(frozen=True, slots=True)
class HeldOutGrade:
    """What the grader and the rewards of a run say of one completion."""

    outcome: Outcome | None = None
    """None without a grader."""
    reward: float | None = None
    """The weighted sum of its rewards, without those that do not apply; None if none does."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """By function, then by environment; None where one does not apply."""
    score: float | None = None
    """What it counts in the accuracy, where that is not 1 for right and 0 for wrong: its environment's reward."""
    mode: str | None = None
    """The answer as the grader names it, see `covey.rewards.Graded`."""


GradeBatch = Callable[[Sequence[str], Sequence[Mapping[str, Any]], "Sequence[Completion]"], Sequence[HeldOutGrade]]
"""From the texts of completions, the rows of their problems and what the engine returned, to grades."""


@dataclass(frozen=True, slots=True)
class GradedCompletion:
    """One completion of one held-out problem."""

    problem: int
    """Row of the problem in its set."""
    prompt: str
    """The last user message, or the prompt string."""
    answer: str | None
    """None where the data has no answers."""
    completion: str
    outcome: Outcome | None
    """None without a grader."""
    well_formed: bool
    length: int
    truncated: bool
    sample: int = 0
    """Index among the problem's completions."""
    extracted: str | None = None
    """The stated answer, so that equal answers are equal texts: as the grader names it, else numbers normalised."""
    partial: bool = False
    """Right, or a number within 10% of the answer."""
    repeats_prompt: bool | None = None
    """Whether its final text repeats the prompt (`covey.answers.watch`)."""
    holds_gold: bool | None = None
    """Of a right one whose gold answer is a number, whether it has an equal number."""
    reward: float | None = None
    """See `HeldOutGrade`."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    score: float | None = None
    """See `HeldOutGrade`."""
    mode: str | None = None
    """Which of the problem's right answers it is; None of any other, and where the grader names none."""
    num_modes: int | None = None
    """How many different right answers the problem has, where the data says so (a column `num_modes`)."""
    messages: list[dict[str, Any]] | None = None
    """Of an episode with tools or an environment, the whole conversation; this and what follows is None of others."""
    turns: int | None = None
    tool_calls: int | None = None
    tool_failures: int | None = None
    malformed_calls: int | None = None
    environment_seconds: float | None = None
    episode: str | None = None
    """How it ended, see `covey.environments.episodes.Episode`."""
    row: dict[str, Any] | None = None
    """The columns of its data row besides `prompt` and `answer`."""

    @property
    def asked(self) -> str:
        """What the model was asked, with the environment's observation."""
        return self.prompt if self.messages is None else last_user_message(self.messages)

    def record(self) -> dict[str, Any]:
        """Its fields as they are stored, without those that only some completions have."""
        return {name: value for name, value in asdict(self).items() if value is not None or name not in _OPTIONAL}

    def episode_record(self) -> dict[str, Any]:
        """Its figures as an episode."""
        return {name: getattr(self, name) for name in _FIGURES}


_FIGURES = ("score", "turns", "tool_calls", "tool_failures", "malformed_calls", "environment_seconds", "episode")
_OPTIONAL = (*_FIGURES, "messages", "row", "mode", "num_modes", "repeats_prompt", "holds_gold")


def grade_batch(
    batch: Sequence[tuple[int, int, Mapping[str, Any]]],
    completions: Sequence[Completion],
    *,
    grade: GradeBatch | None,
    tags: Tags,
    prompt_prefix: str,
) -> list[GradedCompletion]:
    """Grade a batch of completions.

    Args:
        batch: for each completion the index of its problem, its own among the problem's completions, and the row.
        completions: as the engine returned them.
        grade: None compares the last answer tag with the answer.
        tags: of a well-formed completion.
        prompt_prefix: the end of the prompts that belongs to the completion.
    """
    rows = [row for _, _, row in batch]
    asked = [row.get("prompt") for row in rows]
    texts = whole_answers([str(one.text) for one in completions], asked, prompt_prefix, tags)
    grades = (grade or _grade_exact)(texts, rows, completions)
    found = []
    for (index, sample, row), one, text, given in zip(batch, completions, texts, grades, strict=True):
        played = played_of(one)
        stated = stated_answer(text, tags)
        answer = None if row.get("answer") is None else str(row["answer"])
        prompt, right = last_user_message(row.get("prompt") or ""), given.outcome is Outcome.RIGHT
        found.append(
            GradedCompletion(
                problem=index,
                prompt=prompt,
                answer=answer,
                completion=str(one.text) if played is None else transcript(played.messages),
                outcome=given.outcome,
                well_formed=has_reasoning_format(text, tags),
                length=one.length,
                truncated=one.truncated,
                sample=sample,
                extracted=given.mode or stated,
                partial=given.outcome is not None and is_near(stated, answer, given.outcome),
                repeats_prompt=repeats_prompt(text, prompt, answer, tags),
                holds_gold=holds_gold_value(text, answer) if right and answer is not None else None,
                reward=given.reward,
                rewards=given.rewards,
                score=given.score,
                mode=given.mode if right else None,
                num_modes=number_of_modes(row.get(names.NUM_MODES)),
                **({} if played is None else played.fields()),
            )
        )
    return found


def weighted_reward(rewards: Sequence[float | None], weights: Sequence[float] | None = None) -> float | None:
    """The sum of rewards times weights, without those that are None; None if all are, as in TRL.

    Args:
        rewards: one per function.
        weights: as many; None: each is 1.
    """
    pairs = zip(rewards, weights or [1.0] * len(rewards), strict=False)
    known = [weight * reward for reward, weight in pairs if reward is not None]
    return math.fsum(known) if known else None


def stated_answer(completion: str, tags: Tags) -> str | None:
    """The answer that a completion states, numbers normalised, so that equal answers are equal texts."""
    text = extract_prediction(completion, tags)
    if text is None:
        return None
    number = read_number(text)
    return " ".join(text.split()) if number is None else str(number.value)


def is_near(stated: str | None, gold: str | None, outcome: Outcome) -> bool:
    """Whether an answer is right, or a number within 10% of the gold number."""
    if outcome is Outcome.RIGHT:
        return True
    found, expected = read_number(stated or ""), read_number(gold or "")
    if found is None or expected is None:
        return False
    return abs(found.value - expected.value) * _NEAR <= abs(expected.value)


def _grade_exact(
    texts: Sequence[str], rows: Sequence[Mapping[str, Any]], completions: Sequence[Completion]
) -> list[HeldOutGrade]:
    return [HeldOutGrade(grade_exact(text, row["answer"])) for text, row in zip(texts, rows, strict=True)]
