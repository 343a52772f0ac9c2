"""Whether the grader, and the reward made of it, find an answer in a completion."""

from __future__ import annotations

from covey.answers import Outcome, grade_math
from covey.rewards import get_reward

RIGHT, NOT_RIGHT = True, False


def stated_right(completion: str, gold: str) -> bool:
    """The grader's verdict, which the reward has to share."""
    right = grade_math(completion, gold) is Outcome.RIGHT
    assert get_reward("accuracy")(prompts=["?"], completions=[completion], answer=[gold]) == [float(right)]
    return right
