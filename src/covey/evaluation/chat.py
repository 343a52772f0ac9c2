"""Chatting with a model: answers to prompts, with its chat template and a run's system prompt."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any, Self

from covey.config import Flag, compose
from covey.errors import ConfigError
from covey.evaluation.job import engine_of, sampling_of
from covey.evaluation.target import find_target
from covey.model.loading import load_tokenizer
from covey.model.prompts import TemplateArguments
from covey.rollout import InferenceEngine, SamplingSettings, generate

_BATCH = 32
"""Completions at a time."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A loaded model, and how it is prompted."""

    engine: InferenceEngine
    tokenizer: Any
    sampling: SamplingSettings
    chat_template_kwargs: TemplateArguments
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
        sampling = replace(
            sampling_of(config), max_completion_length=max_tokens, temperature=temperature, top_p=1.0, top_k=0
        )
        if system is None and target.run is not None:
            system = config.dataset.system_prompt
        tokenizer = load_tokenizer(config.model)
        engine = engine_of(config, target, tokenizer, "local", batch_size=_BATCH)
        return cls(engine, tokenizer, sampling, config.training.chat_template_kwargs, system)

    def conversation(self, prompt: Any) -> list[dict[str, str]]:
        """A prompt as messages, the system prompt first; messages are returned unchanged."""
        if not isinstance(prompt, str):
            return list(prompt)
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, {"role": "user", "content": prompt}]

    def answer(self, conversations: list[list[dict[str, str]]], seed: int) -> list[str]:
        """One answer to each conversation."""
        prompts: list[list[dict[str, str]] | str] = [*conversations]
        found = generate(
            self.engine,
            self.tokenizer,
            prompts,
            self.sampling,
            seed=seed,
            chat_template_kwargs=self.chat_template_kwargs,
        )
        return [str(one.text) for one in found]
