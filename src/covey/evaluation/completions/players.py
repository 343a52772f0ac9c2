"""What is played on which problems: the environments and tools of a config, on held-out sets and on benchmarks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from covey.environments.chat import ToolChat
from covey.environments.contract import missing_columns
from covey.environments.episodes import Limits
from covey.environments.runner import EnvironmentRunner, environment_rewards, running
from covey.evaluation.completions.playing import Playing
from covey.log_once import log_once
from covey.model.loading import all_eos_ids, own_generation_config

if TYPE_CHECKING:
    from covey.config import Config
    from covey.config.groups.environment import EnvironmentConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Players:
    """What evaluations of one model are played with: environments and tools that have been started, or none.

    Attributes:
        environment: names them.
        runner: runs them; None for plain completions.
        chat: their conversations, as in training.
        max_length: most tokens of the model's context; None for no limit.
        rewarding: the names of the classes of environments that reward their episodes.
    """

    environment: EnvironmentConfig
    runner: EnvironmentRunner | None = None
    chat: ToolChat | None = None
    max_length: int | None = None
    rewarding: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: Config, runner: EnvironmentRunner | None, tokenizer: Any, model: Any) -> Players:
        """For a model that samples with this tokenizer.

        Args:
            model: None where another engine holds it.

        Raises:
            EnvironmentSetupError: the chat template cannot do tools.
        """
        if runner is None:
            return cls(config.environment)
        stops = _ends(config, tokenizer, model)
        chat = ToolChat.of(tokenizer, config.training.chat_template_kwargs, stop_token_ids=stops)
        context = getattr(getattr(model, "config", None), "max_position_embeddings", None)
        return cls(config.environment, runner, chat, context, environment_rewards(config, runner))

    def playing(self) -> Playing | None:
        """What plays the episodes; None for plain completions."""
        if self.runner is None or self.chat is None:
            return None
        reports = self.environment.malformed_calls == "report"
        limits = Limits(0, self.environment.max_turns, self.max_length, reports)
        return Playing(self.runner, self.chat, limits, rewarding=self.rewarding)

    @contextmanager
    def for_set(self, name: str, columns: Sequence[str], *, benchmark: bool) -> Iterator[Players]:
        """Context manager: what is played on a set of problems.

        On a benchmark, tools are for every problem. So is an environment without a reward of its own, which is a set of
        tools, if its `reset` takes the rows; one that rewards sets a task of its own, and of several no row of a
        benchmark says which.

        Args:
            name: of the set, for the log.
            columns: of its rows.
            benchmark: whether it is one, and no held-out set of the run.
        """
        reason = _unfit(self, columns) if benchmark else ""
        if not reason:
            yield self
            return
        only_tools = replace(self.environment, factory=None, settings={})
        played = "the tools alone are used" if only_tools.tools else "it is evaluated without"
        log_once(logger, f"On the benchmark {name} the environment is not played, because {reason}: {played}.")
        with running(only_tools) as runner:
            yield replace(self, environment=only_tools, runner=runner, rewarding=())


def _unfit(players: Players, columns: Sequence[str]) -> str:
    """Why rows with these columns cannot be played in the environment; empty if they can, or there is none."""
    names = [*players.environment.factories]
    if players.runner is None or not names:
        return ""
    if names != [None]:
        return f"it is one of {len(names)}, and the rows have no column environment"
    (instance,) = players.runner.instances(names)
    if players.rewarding:
        return "it rewards a task of its own"
    missing = missing_columns(instance.reset, columns)
    return f"its reset needs {' and '.join(missing)}, which the rows lack" if missing else ""


def _ends(config: Config, tokenizer: Any, model: Any) -> list[int]:
    """The tokens that end a turn."""
    if model is not None:
        return all_eos_ids(model, tokenizer)
    declared = getattr(own_generation_config(config.model), "eos_token_id", None)
    return [tokenizer.eos_token_id, *([declared] if isinstance(declared, int) else declared or [])]
