"""The reward of reasoning-gym's tasks: each task scores answers itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from covey.answers import Outcome, extract_answer_tag, reasoning_gym
from covey.answers.reasoning_gym import SECONDS, STARTING
from covey.answers.statement import after_thinking
from covey.errors import RewardError
from covey.rewards.reward import Graded, Reward, named, texts_of
from covey.rewards.settings import RewardSettings

NAME = "reasoning_gym"
_SECONDS = STARTING + SECONDS


def score(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    """What the scorer of a reasoning-gym task gives the completion's answer: 1 where it is right.

    The answer is the content of the last `<answer>…</answer>`, or else all that follows the thinking. Many tasks give
    part of 1 to an answer that is nearly right or only in the right form, so right is a score of 1. The rows are those
    of `dataset=reasoning_gym`, whose column `reasoning_gym` holds the problem as its scorer needs it.

    Range: 0 to 1. Source: the library reasoning-gym, whose tasks each define `score_answer`.
    """
    after = after_thinking(text, settings.tags)
    answer = None if after is None else extract_answer_tag(after, settings.tags.answer) or after.strip() or None
    value = reasoning_gym.score(answer, row[reasoning_gym.COLUMN])
    if value >= 1:
        return Graded(value, Outcome.RIGHT)
    return Graded(value, Outcome.UNPARSABLE_PREDICTION if answer is None else Outcome.WRONG)


def build_reasoning_gym(settings: RewardSettings) -> Reward:
    """The reward, which reads the rows' own column in place of a gold answer."""

    def sample(text: str, row: Mapping[str, Any]) -> Graded:
        if row.get(reasoning_gym.COLUMN) is None:
            raise RewardError(
                f"The reward {NAME} needs the column {reasoning_gym.COLUMN}, which rows of dataset=reasoning_gym have."
            )
        return score(text, row, settings)

    def batch(
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] | None = None,
        *,
        reasoning_gym: Sequence[str],
        **columns: Any,
    ) -> list[float | None]:
        texts = texts_of(NAME, completions)
        rows = ({NAME: problem} for problem in reasoning_gym)
        return [sample(text, row).value for text, row in zip(texts, rows, strict=True)]

    return Reward(NAME, named(batch, NAME, score), sample, reads=(reasoning_gym.COLUMN,), seconds=lambda row: _SECONDS)
