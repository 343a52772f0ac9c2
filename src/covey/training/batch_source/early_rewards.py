"""Starting rewards in worker processes as soon as there are completions, while the models still score them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from covey.rewards.arguments import columns_of
from covey.rewards.runner import RewardRunner

ENVIRONMENTS = "environments"
"""TRL's name of the argument with the environment of each completion."""


class EarlyRewards:
    """Submits completions early to the runners behind a trainer's reward functions.

    Args:
        functions: the trainer's reward functions. Those of a `RewardRunner` can start early; others are not touched.
    """

    def __init__(self, functions: Sequence[Any]) -> None:
        found = [getattr(function, "runner", None) for function in functions]
        self._runners = list(dict.fromkeys(runner for runner in found if isinstance(runner, RewardRunner)))
        self._rows: Sequence[Mapping[str, Any]] | None = None
        self._started: list[Sequence[Any]] = []

    @contextmanager
    def batch_of(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Context manager: completions of these data rows are generated, scored and rewarded. On exit, rewards that
        were started but not collected are dropped."""
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None
            for runner in self._runners:
                for completions in self._started:
                    runner.drop(completions)
            self._started.clear()

    def begin(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        environments: Sequence[Any] | None = None,
        **more: Any,
    ) -> None:
        """Start the rewards of these completions, the same objects that the functions will be called with.

        Args:
            prompts: one per completion.
            completions: texts or conversations.
            environments: of the completions, for functions that take them by name: copies of their attributes are sent.
            more: further arguments of the functions, besides the columns of the data rows.
        """
        if not self._rows or not self._runners:
            return
        columns = columns_of(self._rows)
        self._started.append(completions)
        for runner in self._runners:
            own = {} if environments is None or not runner.takes(ENVIRONMENTS) else {ENVIRONMENTS: environments}
            runner.begin(prompts, completions, {**columns, **more, **own})
