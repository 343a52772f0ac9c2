"""Sampling completions outside of a training step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from covey.model.loading import all_eos_ids
from covey.model.prompts import render
from covey.model.reasoning_vocab.vocabulary import vocabulary_of
from covey.rollout.local.compatibility import log_fallback, read_settings, unsupported_reason
from covey.rollout.local.prompt_cache import NotSharedError
from covey.rollout.local.sampling import sample
from covey.rollout.thinking import ThinkingMask


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How to sample completions. Temperature 0 is greedy decoding."""

    max_completion_length: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template besides the messages."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One completion."""

    text: str
    """Decoded without special tokens."""
    length: int
    """Tokens, the end-of-sequence token included."""
    truncated: bool
    """Whether it reached the length limit before it ended."""


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[dict[str, str]] | str],
    sampling: SamplingSettings,
    *,
    batch_size: int,
    seed: int,
    shared_prefill: bool = True,
    on_progress: Callable[[int], None] | None = None,
    any_has_work: Callable[[bool], bool] | None = None,
) -> list[Generation]:
    """Sample one completion per prompt; the caller's random state and the model's mode are restored.

    A model with a reasoning vocabulary samples reasoning tokens inside of thinking only.

    Args:
        model: a causal language model, not wrapped for distributed training.
        tokenizer: its tokenizer; conversations are rendered with its chat template.
        prompts: conversations or plain strings. Repeat a prompt to get several completions of it.
        batch_size: completions sampled at once.
        seed: the same seed, prompts and weights give the same completions.
        shared_prefill: whether consecutive equal prompts are prefilled once, and ended completions leave the batch; if
            not, transformers' `generate` is used, which with the same seed samples other tokens.
        on_progress: called with the number of completions done so far.
        any_has_work: as for `sample`: with sharded weights every forward needs all processes.
    """
    device = model.device
    eos = all_eos_ids(model, tokenizer)
    config = _generation_config(sampling, eos, tokenizer)
    devices = [device] if device.type == "cuda" else []
    was_training = model.training
    done: list[Generation] = []
    vocabulary = vocabulary_of(model)
    model.eval()
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(seed)
            for start in range(0, len(prompts), batch_size):
                batch = _encode(tokenizer, prompts[start : start + batch_size], sampling.chat_template_kwargs)
                masks = []
                if vocabulary is not None:
                    vocabulary.check_prompts(batch)
                    masks = [ThinkingMask(vocabulary, temperature=sampling.temperature)]
                completions = None
                if shared_prefill:
                    together: dict[str, Any] = {"logits_processors": masks, "any_has_work": any_has_work}
                    completions = sample_or_none(model, batch, config, **together)
                if completions is None:
                    inputs = tokenizer.pad({"input_ids": batch}, padding_side="left", return_tensors="pt").to(device)
                    output = model.generate(**inputs, generation_config=config, logits_processor=masks)
                    completions = output[:, inputs["input_ids"].shape[1] :].tolist()
                done += [_finish(ids, eos, tokenizer) for ids in completions]
                if on_progress is not None:
                    on_progress(len(done))
    finally:
        model.train(was_training)
    return done


def sample_or_none(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    config: GenerationConfig,
    more_eos_token_ids: Collection[int] = (),
    **more: Any,
) -> list[list[int]] | None:
    """`covey.rollout.sample` under a generation config; None, with a line in the log, if it cannot be used.

    Args:
        model: a causal language model, in the intended mode.
        prompt_ids: token ids of the prompts.
        config: the settings, as for `generate`.
        more_eos_token_ids: tokens that end a completion, besides those of the config.
        more: further arguments of `sample`.
    """
    try:
        sampling, stop = read_settings(model, config, more_eos_token_ids)
        reason = unsupported_reason(model)
    except NotSharedError as refusal:
        reason = str(refusal)
    if reason is not None:
        log_fallback(reason)
        return None
    return [found.ids for found in sample(model, prompt_ids, sampling=sampling, stop=stop, **more)]


def _encode(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[dict[str, str]] | str], arguments: Mapping[str, Any]
) -> list[list[int]]:
    rendered = [render(tokenizer, prompt, arguments) for prompt in prompts]
    # A chat template adds the BOS token itself if the model needs one.
    conversational = not isinstance(prompts[0], str)
    encoded: list[list[int]] = tokenizer(rendered, add_special_tokens=not conversational)["input_ids"]
    return encoded


def _generation_config(
    sampling: SamplingSettings, eos: list[int], tokenizer: PreTrainedTokenizerBase
) -> GenerationConfig:
    options: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        options = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos[0]
    return GenerationConfig(
        max_new_tokens=sampling.max_completion_length,
        eos_token_id=eos,
        pad_token_id=pad,
        disable_compile=True,
        **options,
    )


def _finish(ids: list[int], eos: list[int], tokenizer: PreTrainedTokenizerBase) -> Generation:
    end = next((i for i, token in enumerate(ids) if token in eos), None)
    kept = ids if end is None else ids[: end + 1]
    return Generation(tokenizer.decode(kept, skip_special_tokens=True), len(kept), truncated=end is None)
