"""Tasks of the library reasoning-gym as environments: `reset` asks a question, a tool takes the answer.

An environment's `get_reward` sees no completion, so the answer has to be handed in with a tool. Where one reply is all
there is to it, `dataset=reasoning_gym` is simpler: rows, and the same scorer as a reward of the final answer, with or
without tools beside it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from covey.answers.reasoning_gym import problem, score, scoring_task
from covey.errors import DataError, EnvironmentSetupError

_ATTEMPTS = "attempts"


class ReasoningGym:
    """Problems of one task. The reward is what the task's scorer gives the last answer that was handed in, else 0."""

    def __init__(self, task: str, settings: Mapping[str, Any], attempts: int, key: str) -> None:
        """Set the task.

        Args:
            task: its name.
            settings: fields of the task's configuration.
            attempts: how many answers may be handed in.
            key: the config key that names the task, for messages.
        """
        self._task, self._settings, self._attempts, self._key = task, settings, attempts, key
        self._problem, self._left, self._score = "", 0, 0.0

    def reset(self, **row: Any) -> str:
        """Ask a question: that of the row's `seed`, or else of one drawn from `random`."""
        given = row.get("seed")
        seed = random.getrandbits(31) if given is None else int(given)
        question, _, self._problem = problem(self._task, self._settings, seed, self._key)
        self._left, self._score = self._attempts, 0.0
        return f"{question}\n\nHand in the final answer with the tool submit_answer."

    def submit_answer(self, answer: str) -> str:
        """Hand in the final answer.

        Args:
            answer: The answer alone, in the form that the question asks for.

        Returns:
            Whether it is right, where it may be corrected.
        """
        if not self._left:
            return "No further answer is accepted."
        self._left -= 1
        self._score = score(str(answer), self._problem)
        if self._score >= 1:
            self._left = 0
        if self._attempts == 1:
            return "The answer is handed in."
        verdict = "That is right." if self._score >= 1 else "That is not right."
        return f"{verdict} You may try again, {self._left} more." if self._left else verdict

    def get_reward(self) -> float:
        """The score of the last answer that was handed in, between 0 and 1; 0 without one."""
        return self._score


def make(argument: str, settings: Mapping[str, Any]) -> Callable[[], ReasoningGym]:
    """The factory of `reasoning_gym:TASK`.

    Args:
        argument: the task.
        settings: fields of the task's configuration, and `attempts` (1): how many answers may be handed in.

    Raises:
        EnvironmentSetupError: the library is not installed, or there is no such task, or not with these settings.
    """
    key = f"environment.factory=reasoning_gym:{argument}"
    own = {name: value for name, value in settings.items() if name != _ATTEMPTS}
    attempts = settings.get(_ATTEMPTS, 1)
    if not isinstance(attempts, int) or attempts < 1:
        raise EnvironmentSetupError(f"{key}: attempts={attempts} must be a whole number of at least 1.")
    try:
        scoring_task(argument, own, key)
    except DataError as error:
        raise EnvironmentSetupError(str(error)) from error
    return lambda: ReasoningGym(argument, own, attempts, key)
