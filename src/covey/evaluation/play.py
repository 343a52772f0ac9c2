"""Episodes of an evaluation: what is played on its problems, and one completion of each row."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from covey.environments.chat import Message, ToolChat
from covey.environments.contract import has_reward, missing_columns
from covey.environments.episodes import Episode, Limits, begin_episodes, run_episodes
from covey.environments.runner import EnvironmentRunner, control_of, environment_rewards, running
from covey.evaluation.played import Played, row_columns
from covey.log_once import log_once
from covey.model.load import all_eos_ids, own_generation_config
from covey.rewards.reward import completion_text
from covey.rollout import Completion, InferenceEngine, SamplingSettings, complete
from covey.rollout.generate import conversation

if TYPE_CHECKING:
    from covey.config import Config
    from covey.config.groups.environment import EnvironmentConfig

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]
Largest = Callable[[int], int]
"""The largest of all processes' values; of several that must call `generate` equally often."""


@dataclass(frozen=True, slots=True)
class EpisodeCompletion(Completion):
    """A completion that is an episode. `text` is that of the model's last message, `ids` hold results too."""

    played: Played = field(default_factory=Played)

    @property
    def length(self) -> int:
        """The tokens that the model sampled, as TRL counts them."""
        return self.played.sampled


class Playing:
    """Plays the episodes of an evaluation.

    Args:
        runner: the environments and tools, started.
        chat: renders and parses the conversations, as in training.
        limits: of an episode, but for its tokens, which the sampling limits.
        rewarding: names of all classes of environments with `get_reward`.
        watch: called with the episodes after each turn and after its calls, to show them.
    """

    def __init__(
        self,
        runner: EnvironmentRunner,
        chat: ToolChat,
        limits: Limits,
        *,
        rewarding: Sequence[str] = (),
        watch: Callable[[Sequence[Episode]], None] = lambda episodes: None,
    ) -> None:
        self._runner = runner
        self._chat = chat
        self._limits = limits
        self._rewarding = tuple(rewarding)
        self.watch = watch

    def sample(
        self,
        engine: InferenceEngine,
        rows: Sequence[Row],
        sampling: SamplingSettings,
        *,
        seed: int,
        starts: Sequence[int | None],
        vocab_size: int | None = None,
        largest: Largest = int,
    ) -> list[EpisodeCompletion]:
        """Play one episode of each row.

        The first turn is sampled as a plain completion with this seed would be; each later one has a seed that follows
        from it. From the second turn on an episode's random numbers depend on which others of the call go on, and so
        on the weights and seeds only.

        Args:
            engine: samples the turns.
            rows: of the data; none for a process that only takes part in the turns of others.
            sampling: the settings; the longest completion is that of the whole episode, results included.
            seed: of the turns.
            starts: the seed of each episode's environment.
            vocab_size: see `complete`.
            largest: where all processes must call `generate` equally often.
        """
        episodes = self.begin(rows, starts) if rows else []
        self.play(engine, episodes, sampling, seed=seed, vocab_size=vocab_size, largest=largest)
        owned = [has_reward(type(episode.environment)) for episode in episodes]
        for episode, own in zip(episodes, owned, strict=True):
            if own and (control := control_of(episode.environment)) is not None:
                control.begin_reward()  # all at once
        return [self._completion(*one) for one in zip(episodes, rows, owned, strict=True)]

    def begin(self, rows: Sequence[Row], starts: Sequence[int | None]) -> list[Episode]:
        """New episodes of these rows, see `begin_episodes`; those of an earlier call have ended."""
        return begin_episodes(rows, self._runner, self._chat, seeds=starts)

    def go_on(self, episode: Episode, message: Message) -> Episode:
        """An episode that continues another one's conversation, in the same environment, with a user's message."""
        messages = [*episode.messages, *episode.completion, message]
        ids = self._chat.render(messages, list(episode.tools.values()))
        return Episode.of(messages, ids, episode.tools, episode.environment)

    def play(
        self,
        engine: InferenceEngine,
        episodes: Sequence[Episode],
        sampling: SamplingSettings,
        *,
        seed: int,
        vocab_size: int | None = None,
        largest: Largest = int,
    ) -> None:
        """Play episodes to their end; arguments as of `sample`."""
        turns = _Turns(engine, sampling, seed, vocab_size, self._chat.tokenizer.eos_token_id)
        with conversation(engine):
            run_episodes(
                episodes,
                self._chat,
                turns,
                replace(self._limits, max_completion_length=sampling.max_completion_length),
                largest=largest,
                watch=partial(self.watch, episodes),
            )

    def _completion(self, episode: Episode, row: Row, own: bool) -> EpisodeCompletion:
        rewards: dict[str, float | None] = dict.fromkeys(self._rewarding)
        if own:
            rewards[type(episode.environment).__name__] = episode.environment.get_reward()
        episode.settle()
        played = Played(
            prompt=episode.messages,
            messages=episode.completion,
            sampled=sum(episode.mask),
            turns=episode.turns,
            calls=episode.calls,
            failures=episode.failures,
            malformed=episode.malformed,
            seconds=episode.seconds,
            ended=str(episode.ended),
            rewards=rewards,
            owned=own,
            row=row_columns(row),
            environment=episode.environment,
        )
        text = completion_text(episode.completion)
        return EpisodeCompletion(episode.ids, truncated=episode.ended == "truncated", text=text, played=played)


def start_seed(seed: int, problem: int) -> int:
    """The seed of a problem's environment: one for all its completions, whatever the batches."""
    return random.Random(f"{seed}/{problem}").getrandbits(32)


@dataclass
class _Turns:
    """Samples the turns of episodes, see `covey.environments.episodes.Generate`."""

    engine: InferenceEngine
    sampling: SamplingSettings
    seed: int
    vocab_size: int | None
    token: int
    """Any of the vocabulary: the prompt of a process that only takes part in the turns of others."""
    count: int = 0

    def __call__(self, prompts: list[list[int]], remaining: list[int]) -> tuple[list[list[int]], None]:
        seed = random.Random(f"{self.seed}/{self.count}").getrandbits(31) if self.count else self.seed
        self.count += 1
        found = complete(
            self.engine,
            prompts or [[self.token]],
            self.sampling,
            seed=seed,
            vocab_size=self.vocab_size,
            max_lengths=[max(most, 1) for most in remaining] or [1],
        )
        return [one.ids for one in found[: len(prompts)]], None


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
