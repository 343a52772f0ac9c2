"""Completions of conversations: rendered and tokenised, sampled by an engine, decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from covey.errors import EngineError
from covey.model.prompts import TemplateArguments, render
from covey.rollout.engine import Completion, InferenceEngine, SamplingSettings


def generate(
    engine: InferenceEngine,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[dict[str, str]] | str],
    sampling: SamplingSettings,
    *,
    seed: int | None,
    chat_template_kwargs: TemplateArguments = None,
) -> list[Completion]:
    """One completion per prompt, with its text.

    Args:
        engine: samples the tokens.
        tokenizer: of its model; conversations are rendered with its chat template.
        prompts: conversations or plain strings. Repeat a prompt to get several completions of it.
        sampling: the settings.
        seed: the same seed, prompts and weights give the same completions, if the engine is `seeded`.
        chat_template_kwargs: arguments of the chat template besides the messages.

    Raises:
        ModelError: the chat template fails.
        EngineError: the engine fails.
    """
    ids = [_encode(tokenizer, prompt, chat_template_kwargs) for prompt in prompts]
    found = complete(engine, ids, sampling, seed=seed)
    return [
        one if one.text is not None else replace(one, text=str(tokenizer.decode(one.ids, skip_special_tokens=True)))
        for one in found
    ]


def complete(
    engine: InferenceEngine, prompts: Sequence[Sequence[int]], sampling: SamplingSettings, *, seed: int | None
) -> list[Completion]:
    """`engine.generate`, whose result is checked.

    Raises:
        EngineError: it is not one completion per prompt, of at least one token each, or log-probabilities do not fit.
    """
    found = engine.generate(prompts, sampling, seed=seed)
    name = type(engine).__name__
    if len(found) != len(prompts):
        raise EngineError(f"The engine {name} returned {len(found)} completions of {len(prompts)} prompts: one each.")
    if not all(one.ids for one in found):
        raise EngineError(
            f"The engine {name} returned a completion without tokens: it holds at least the token that ended it."
        )
    if not all(one.logps is None or len(one.logps) == len(one.ids) for one in found):
        raise EngineError(f"The engine {name} returned log-probabilities that are not one for each token.")
    return found


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: Any, arguments: TemplateArguments) -> list[int]:
    text = render(tokenizer, prompt, arguments)
    # A chat template adds the BOS token itself if the model needs one.
    return list(tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])
