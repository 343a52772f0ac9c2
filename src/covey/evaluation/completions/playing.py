"""Episodes of an evaluation: rows in, one completion each out, by the environments and tools of the run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from covey.environments.chat import ToolChat
from covey.environments.contract import has_reward
from covey.environments.episodes import Episode, begin_episodes, run_episodes
from covey.environments.proxies import control_of
from covey.rewards.reward import completion_text
from covey.rollout import Completion, InferenceEngine, SamplingSettings, complete
from covey.rollout.generate import conversation

if TYPE_CHECKING:
    from covey.environments.runner import EnvironmentRunner

Row = Mapping[str, Any]
AnyOf = Callable[[bool], bool]
"""Takes a flag of this process, returns whether any process has it set."""


@dataclass(frozen=True, slots=True)
class EpisodeCompletion(Completion):
    """A completion that is an episode. `text` is the content of the model's last message, `ids` hold results too."""

    prompt: Sequence[Row] = ()
    """The messages of the prompt, with the environment's observation."""
    messages: Sequence[Row] = ()
    """Those of the model, and the results."""
    sampled: int = 0
    """Tokens that the model sampled."""
    turns: int = 0
    calls: int = 0
    failures: int = 0
    seconds: float = 0.0
    ended: str = ""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Of environments that reward, by the name of their class: this episode's own, None of the others."""
    owned: bool = False
    """Whether this episode's environment rewards it."""

    @property
    def length(self) -> int:
        """Its sampled tokens, as TRL counts them."""
        return self.sampled


class Playing:
    """Plays the episodes of an evaluation.

    Args:
        runner: the environments and tools, started.
        chat: renders and parses the conversations, as in training.
        max_turns: most turns of the model in an episode; None for no limit.
        max_length: most tokens of the prompt and all that follows; None for no limit.
        rewarding: names of all classes of environments with `get_reward`.
        on_turn: called with the episodes before each turn and after the last one; for a display.
    """

    def __init__(
        self,
        runner: EnvironmentRunner,
        chat: ToolChat,
        *,
        max_turns: int | None,
        max_length: int | None = None,
        rewarding: Sequence[str] = (),
        on_turn: Callable[[Sequence[Episode]], None] | None = None,
    ) -> None:
        self._runner = runner
        self._chat = chat
        self._limits: dict[str, int | None] = {"max_turns": max_turns, "max_length": max_length}
        self._rewarding = tuple(rewarding)
        self._on_turn = on_turn

    def sample(
        self,
        engine: InferenceEngine,
        rows: Sequence[Row],
        sampling: SamplingSettings,
        *,
        seed: int,
        starts: Sequence[int | None],
        vocab_size: int | None = None,
        any_of: AnyOf | None = None,
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
            any_of: where all processes must call `generate` equally often.
        """
        episodes = begin_episodes(rows, self._runner, self._chat, seeds=starts) if rows else []
        turns = _Turns(engine, sampling, seed, vocab_size, self._before_turn(episodes), any_of)
        with conversation(engine):
            if episodes:
                most = sampling.max_completion_length
                run_episodes(episodes, self._chat, turns, max_completion_length=most, **self._limits)
            turns.take_part(self._chat.tokenizer.eos_token_id)
        self._before_turn(episodes)()
        return self._rewarded(episodes)

    def _before_turn(self, episodes: Sequence[Episode]) -> Callable[[], None]:
        on_turn = self._on_turn
        return (lambda: None) if on_turn is None else (lambda: on_turn(episodes))

    def _rewarded(self, episodes: Sequence[Episode]) -> list[EpisodeCompletion]:
        owned = [has_reward(type(episode.environment)) for episode in episodes]
        for episode, own in zip(episodes, owned, strict=True):
            if own and (control := control_of(episode.environment)) is not None:
                control.begin_reward()  # all at once
        return [self._completion(episode, own) for episode, own in zip(episodes, owned, strict=True)]

    def _completion(self, episode: Episode, own: bool) -> EpisodeCompletion:
        rewards: dict[str, float | None] = dict.fromkeys(self._rewarding)
        if own:
            rewards[type(episode.environment).__name__] = episode.environment.get_reward()
        return EpisodeCompletion(
            ids=episode.ids,
            truncated=episode.ended == "truncated",
            text=completion_text(episode.completion),
            prompt=episode.messages,
            messages=episode.completion,
            sampled=sum(episode.mask),
            turns=episode.turns,
            calls=episode.calls,
            failures=episode.failures,
            seconds=episode.seconds,
            ended=str(episode.ended),
            rewards=rewards,
            owned=own,
        )


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
    before: Callable[[], None]
    any_of: AnyOf | None
    count: int = 0

    def __call__(self, prompts: list[list[int]], remaining: list[int]) -> tuple[list[list[int]], None]:
        self.before()
        if self.any_of is not None:
            self.any_of(True)
        return [one.ids for one in self._sample(prompts, remaining)], None

    def take_part(self, token: int) -> None:
        """Call `generate` as often as the processes whose episodes still go on."""
        while self.any_of is not None and self.any_of(False):
            self._sample([[token]], [1])

    def _sample(self, prompts: list[list[int]], remaining: list[int]) -> list[Completion]:
        seed = random.Random(f"{self.seed}/{self.count}").getrandbits(31) if self.count else self.seed
        self.count += 1
        more: dict[str, Any] = {"vocab_size": self.vocab_size, "max_lengths": remaining}
        return complete(self.engine, prompts, self.sampling, seed=seed, **more)
