"""Rewards in worker processes begin as soon as there are completions, while the models still score them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from covey.rewards.execution import RewardRunner

_NOT_A_COLUMN = {"prompt", "completion", "completion_ids"}


class EarlyRewards:
    """Tells the runners behind a trainer's reward functions when completions are there.

    Args:
        functions: the trainer's reward functions. Those of a `RewardRunner` can begin early; others are left alone.
    """

    def __init__(self, functions: Sequence[Any]) -> None:
        found = [getattr(function, "runner", None) for function in functions]
        self._runners = list(dict.fromkeys(runner for runner in found if isinstance(runner, RewardRunner)))
        self._rows: Sequence[Mapping[str, Any]] | None = None
        self._begun: list[Sequence[Any]] = []

    @contextmanager
    def batch_of(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Within this block completions of these data rows are written, scored and rewarded; afterwards what was begun
        and not collected is dropped."""
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None
            for runner in self._runners:
                for completions in self._begun:
                    runner.drop(completions)
            self._begun.clear()

    def begin(self, prompts: Sequence[Any], completions: Sequence[Any], **more: Any) -> None:
        """Begin with the rewards of these completions, which are those that the functions will be called with.

        Args:
            prompts: one per completion.
            completions: texts or conversations.
            more: what the functions are given beside the columns of the data rows.
        """
        if not self._rows or not self._runners:
            return
        columns = {key: [row[key] for row in self._rows] for key in self._rows[0] if key not in _NOT_A_COLUMN}
        self._begun.append(completions)
        for runner in self._runners:
            runner.begin(prompts, completions, {**columns, **more})
