"""Chatting with a model, with its chat template and a run's system prompt, tools and environment."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from covey.config import compose
from covey.environments.runner import running
from covey.errors import ConfigError, EnvironmentSetupError
from covey.evaluation.stored import find_target
from covey.model.load import load_tokenizer
from covey.model.prompts import TemplateArguments
from covey.rewards.reward import completion_text

if TYPE_CHECKING:
    from covey.config import Config
    from covey.environments.episodes import Episode
    from covey.evaluation.play import Playing
    from covey.rollout import InferenceEngine, SamplingSettings


_BATCH = 32
"""Completions at a time."""
_MAX_TOKENS = 256

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said."""

    text: str
    """Of an episode with tools, the model's last message."""
    episode: Episode | None = None
    """None without tools and environment."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A loaded model, and how it is prompted."""

    engine: InferenceEngine
    tokenizer: Any
    sampling: SamplingSettings
    chat_template_kwargs: TemplateArguments
    system: str | None
    playing: Playing | None = None
    """Plays episodes with the run's tools and environment; None without."""

    @classmethod
    @contextmanager
    def of(
        cls,
        name: str,
        system: str | None,
        temperature: float,
        max_tokens: int | None,
        watch: Callable[[Sequence[Episode]], None] | None = None,
    ) -> Iterator[ChatModel]:
        """Context manager: a model, a run or a checkpoint, loaded.

        Args:
            name: see `find_target`.
            system: the system prompt; None takes the run's.
            temperature: 0 is greedy.
            max_tokens: the longest completion; None takes 256, or with tools that of the run if it is longer.
            watch: see `Playing`.

        Raises:
            CoveyError: it cannot be found or loaded, or a setting is out of range.
        """
        if not 0 <= temperature < math.inf:
            raise ConfigError(f"--temperature {temperature:g}: give 0, for greedy decoding, or a number above it.")
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"--max-tokens {max_tokens}: a completion has at least one token.")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        target = find_target(name)
        config = compose(target.words(), target.recipe).config
        if system is None and target.recipe is not None:
            system = config.dataset.system_prompt
        with running(config.environment) as environments:
            from covey.evaluation.play import Players
            from covey.evaluation.run import engine_of

            tokenizer = load_tokenizer(config.model)
            engine = engine_of(config, target, tokenizer, "local", batch_size=_BATCH)
            with closing(engine):
                playing = Players.of(config, environments, tokenizer, getattr(engine, "model", None)).playing()
                if playing is not None and watch is not None:
                    playing.watch = watch
                sampling = _sampling(config, temperature, max_tokens, plays=playing is not None)
                yield cls(engine, tokenizer, sampling, config.training.chat_template_kwargs, system, playing)

    def conversation(self, prompt: Any) -> list[Message]:
        """A prompt as messages, the system prompt first; messages are returned unchanged."""
        if not isinstance(prompt, str):
            return list(prompt)
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, {"role": "user", "content": prompt}]

    def answer(self, rows: Sequence[Mapping[str, Any]], seed: int) -> list[Answer]:
        """One answer to each conversation.

        Args:
            rows: each with the conversation as `prompt`, and what its environment reads.
            seed: of the answers and of the environments.
        """
        if self.playing is None:
            from covey.rollout import generate

            prompts: list[Any] = [row["prompt"] for row in rows]
            template = self.chat_template_kwargs
            found = generate(
                self.engine, self.tokenizer, prompts, self.sampling, seed=seed, chat_template_kwargs=template
            )
            return [Answer(str(one.text)) for one in found]
        from covey.evaluation.play import start_seed

        answers = []
        for first in range(0, len(rows), _BATCH):
            batch = rows[first : first + _BATCH]
            episodes = self.playing.begin(batch, [start_seed(seed, first + place) for place in range(len(batch))])
            self.playing.play(self.engine, episodes, self.sampling, seed=seed + first)
            answers += [Answer(completion_text(episode.completion), episode) for episode in episodes]
        return answers


class Session:
    """A chat: what was said so far, and the environment in which it was said.

    Args:
        model: answers.
        seed: of its answers and its environment.
    """

    def __init__(self, model: ChatModel, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._messages: list[Message] = []
        self._episode: Episode | None = None

    def begin(self) -> bool:
        """Begin anew; whether the environment has spoken first, so that it is the model's turn. Raises an
        `EnvironmentSetupError` if the environment does not start without a row of data."""
        self._messages = self._model.conversation("")[:-1]
        self._episode = None
        if self._model.playing is None:
            return False
        (episode,) = self._model.playing.begin([{"prompt": self._model.conversation("")}], [self._seed])
        if episode.ended is not None:
            raise EnvironmentSetupError(
                "The environment of this run did not start without a row of data; the log above says why. Give it "
                "rows: covey generate RUN FILE.jsonl, each with what reset reads."
            )
        if not episode.messages[-1]["content"]:  # it has nothing to say: the user begins
            episode.messages = episode.messages[:-1]
        self._episode = episode
        return bool(episode.messages) and episode.messages[-1]["role"] == "user"

    @property
    def observation(self) -> str:
        """What the environment has said at the beginning."""
        return "" if self._episode is None else str(self._episode.messages[-1]["content"])

    def answer(self, text: str | None) -> str:
        """The model's answer to what the user says; None: to the environment."""
        model = self._model
        if model.playing is None or self._episode is None:
            self._messages.append({"role": "user", "content": text})
            (answer,) = model.answer([{"prompt": self._messages}], self._seed)
            self._messages.append({"role": "assistant", "content": answer.text})
            return answer.text
        if text is not None:
            self._episode = model.playing.go_on(self._episode, {"role": "user", "content": text})
        model.playing.play(model.engine, [self._episode], model.sampling, seed=self._seed)
        return completion_text(self._episode.completion)

    @property
    def ended(self) -> str | None:
        """Why the newest answer is none: how its episode ended; None where it is one."""
        ended = None if self._episode is None else self._episode.ended
        return None if ended in (None, "answered") else ended


def _sampling(config: Config, temperature: float, max_tokens: int | None, *, plays: bool) -> SamplingSettings:
    from covey.evaluation.run import sampling_of

    longest = max_tokens or max(_MAX_TOKENS, (config.training.max_completion_length or 0) if plays else 0)
    return replace(sampling_of(config), max_completion_length=longest, temperature=temperature, top_p=1.0, top_k=0)
