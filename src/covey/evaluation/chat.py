"""Chatting with a model: answers to prompts, with its chat template and a run's system prompt."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Self

from covey.config import Flag, compose
from covey.errors import ConfigError
from covey.evaluation.job import load_policy
from covey.evaluation.target import find_target
from covey.model.loading import load_tokenizer
from covey.rollout import SamplingSettings, generate


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A loaded model, and how it is prompted."""

    model: Any
    tokenizer: Any
    sampling: SamplingSettings
    system: str | None

    @classmethod
    def of(cls, name: str, system: str | None, temperature: float, max_tokens: int) -> Self:
        """Load a model, a run or a checkpoint.

        Args:
            name: see `find_target`.
            system: the system prompt; None takes the run's.
            temperature: 0 is greedy.
            max_tokens: the longest completion.

        Raises:
            CoveyError: it cannot be found or loaded, or a setting is out of range.
        """
        if not 0 <= temperature < math.inf:
            raise ConfigError(f"--temperature {temperature:g}: give 0, for greedy decoding, or a number above it.")
        if max_tokens < 1:
            raise ConfigError(f"--max-tokens {max_tokens}: a completion has at least one token.")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        target = find_target(name)
        config = compose([Flag("model.name", (target.source,))], target.run).config
        template = config.training.chat_template_kwargs or {}
        sampling = SamplingSettings(max_tokens, temperature, chat_template_kwargs=template)
        if system is None and target.run is not None:
            system = config.dataset.system_prompt
        return cls(load_policy(config, target), load_tokenizer(config.model), sampling, system)

    def conversation(self, prompt: Any) -> list[dict[str, str]]:
        """A prompt as messages, the system prompt first; messages are returned unchanged."""
        if not isinstance(prompt, str):
            return list(prompt)
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, {"role": "user", "content": prompt}]

    def answer(self, conversations: list[list[dict[str, str]]], seed: int) -> list[str]:
        """One answer to each conversation."""
        prompts: list[list[dict[str, str]] | str] = [*conversations]
        found = generate(self.model, self.tokenizer, prompts, self.sampling, batch_size=32, seed=seed)
        return [generation.text for generation in found]
