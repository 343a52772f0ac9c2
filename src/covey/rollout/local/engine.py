"""Covey's own engine: a transformers model in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from covey.errors import EngineError
from covey.log_once import log_once
from covey.model.base import base_model, evaluating
from covey.model.device import casting_once
from covey.model.loading import all_eos_ids
from covey.model.reasoning_vocab.vocabulary import vocabulary_of
from covey.rollout.engine import Capabilities, Completion, NamedWeights, SamplingSettings, cut
from covey.rollout.local.compatibility import (
    log_fallback,
    options_of,
    unsupported_option,
    unsupported_reason,
    unsupported_turns,
)
from covey.rollout.local.conversation import Conversation, Match, Turn, TurnRow
from covey.rollout.local.sampling import sample
from covey.rollout.thinking import ThinkingMask

logger = logging.getLogger(__name__)

AnyHasWork = Callable[[bool], bool]
"""As for `sample`: with sharded weights every forward needs all processes."""


class LocalEngine:
    """A causal language model, sampled by `covey.rollout.sample`, or where that is not supported by transformers.

    A model with a reasoning vocabulary samples reasoning tokens inside of thinking only.
    """

    def __init__(
        self,
        model_name: PreTrainedModel | Any,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int | None = None,
        shared_prefill: bool = True,
        autocast: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            model_name: the model, with or without adapters, not wrapped for distributed training; or its name.
            tokenizer: of the model.
            batch_size: completions sampled at once; None takes all of a call.
            shared_prefill: whether consecutive equal prompts are prefilled once, and ended completions leave the
                batch; if not, transformers' `generate` is used, which with the same seed samples other tokens.
            autocast: the dtype of mixed precision, in which float32 weights compute on a GPU; None for none.
            options: of `from_pretrained`, for a name.
        """
        if isinstance(model_name, str):
            options["dtype"] = options.get("dtype") or "float32"
            model_name = AutoModelForCausalLM.from_pretrained(model_name, **options)
        self.model = model_name
        self.tokenizer = tokenizer
        self.shared_prefill = shared_prefill
        self._batch_size = batch_size
        self._autocast = autocast
        self._version: int | None = None
        self._conversation: Conversation | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Log-probabilities with a shared prefill only."""
        return Capabilities(logprobs=self.shared_prefill, seeded=True, reasoning_vocab=True, row_limits=True)

    @property
    def version(self) -> int | None:
        """See `InferenceEngine`."""
        return self._version

    @contextmanager
    def conversation(self) -> Iterator[None]:
        """Context manager around the turns of a batch of conversations; see `covey.rollout.conversation`.

        Keys and values of the rows of a call of `generate` are kept for the next one: a prompt that starts with the
        tokens of such a row, in any order and however many of them, is read from its first new token on. They are
        released on leaving, and when the weights' `version` changes.
        """
        outer, self._conversation = self._conversation, Conversation()
        try:
            yield
        finally:
            self._conversation = outer

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingSettings,
        *,
        seed: int | None = None,
        max_lengths: Sequence[int] | None = None,
    ) -> list[Completion]:
        """See `InferenceEngine`. The model's mode is restored.

        Args:
            prompts: see `InferenceEngine`.
            sampling: see `InferenceEngine`.
            seed: see `InferenceEngine`.
            max_lengths: the longest completion of each prompt, where it is below that of the settings.

        Raises:
            DataError: a prompt holds reasoning tokens, other than those of its row's last turn.
            TrainingError: the logits are not finite.
        """
        with self._in_use() as model, seeded(model.device, seed), torch.no_grad():
            found = None
            if self.shared_prefill:
                found = self._sample(model, prompts, sampling, unsupported_option(options_of(model)), max_lengths)
            return self._by_transformers(model, prompts, sampling, max_lengths) if found is None else found

    def sync(self, weights: NamedWeights, version: int) -> None:
        """See `InferenceEngine`.

        Raises:
            EngineError: a weight is unknown, or has another shape.
        """
        own = dict(base_model(self.model).named_parameters())
        with torch.no_grad():
            for name, tensor in weights:
                if name not in own or own[name].shape != tensor.shape:
                    raise EngineError(f"The model of this engine has no weight {name} of shape {list(tensor.shape)}.")
                own[name].copy_(tensor)
        self._version = version
        if self._conversation is not None:
            self._conversation.release()

    def close(self) -> None:
        """Drop the model."""
        self.model = None

    @contextmanager
    def _in_use(self) -> Iterator[Any]:
        """The model, ready to generate."""
        with evaluating(self.model), casting_once(self.model, self._autocast):
            yield self.model

    def _any_has_work(self, model: Any) -> AnyHasWork | None:
        return None

    def _sample(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingSettings,
        refusal: str | None,
        max_lengths: Sequence[int] | None = None,
    ) -> list[Completion] | None:
        """By `sample`; None, with a line in the log, where it cannot be used.

        Args:
            model: in use.
            prompts: see `generate`.
            sampling: see `generate`.
            refusal: a reason not to use it, if there is one already.
            max_lengths: see `generate`.
        """
        refusal = refusal or unsupported_reason(model)
        if refusal is not None:
            log_fallback(refusal)
            return None
        eos, pad = self._ends(model)
        matches, keeps = self._matches(model, prompts), self._keeps(model)
        done, rows = list[Completion](), list[TurnRow]()
        for batch in self._batches(prompts) or [slice(0, 0)]:  # with nothing to do, it may have to take part in others'
            turn = Turn(matches[batch]) if keeps else None
            matches[batch] = [Match()] * len(prompts[batch])  # their keys and values are no longer needed here
            done += sample(
                model,
                prompts[batch],
                sampling,
                eos_token_ids=eos,
                pad_token_id=pad,
                logits_processors=self._masks(model, sampling),
                any_has_work=self._any_has_work(model),
                max_lengths=None if max_lengths is None else max_lengths[batch],
                turn=turn,
            )
            rows += [] if turn is None else turn.rows
        self._keep(prompts, done, rows)
        return done

    def _by_transformers(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingSettings,
        max_lengths: Sequence[int] | None,
    ) -> list[Completion]:
        self._matches(model, prompts)
        eos, pad = self._ends(model)
        eos = list(dict.fromkeys((*eos, *sampling.stop_token_ids)))
        config, done = _generation_config(sampling, eos, pad), list[Completion]()
        for batch in self._batches(prompts):
            ids = {"input_ids": list(map(list, prompts[batch]))}
            inputs = self.tokenizer.pad(ids, padding_side="left", return_tensors="pt").to(model.device)
            masks = self._masks(model, sampling)
            output = model.generate(**inputs, generation_config=config, logits_processor=masks)
            done += [_until_end(one, eos) for one in output[:, inputs["input_ids"].shape[1] :].tolist()]
        if max_lengths is not None:
            done = list(map(cut, done, max_lengths))
        self._keep(prompts, done, [])
        return done

    def _batches(self, prompts: Sequence[Sequence[int]]) -> list[slice]:
        size = self._batch_size or max(len(prompts), 1)
        return [slice(start, start + size) for start in range(0, len(prompts), size)]

    def _matches(self, model: Any, prompts: Sequence[Sequence[int]]) -> list[Match]:
        """What the last turn holds of these prompts. The rest must be ordinary tokens."""
        matches = [Match()] * len(prompts)
        if self._conversation is not None:
            matches = self._conversation.find(prompts, self.version)
        vocabulary = vocabulary_of(model)
        if vocabulary is not None:
            vocabulary.check_prompts([ids[one.common :] for ids, one in zip(prompts, matches, strict=True)])
        return matches

    def _keeps(self, model: Any) -> bool:
        """Whether this turn's keys and values are kept for the next; if a model cannot, with a line in the log."""
        if self._conversation is None:
            return False
        reason = unsupported_turns(model)
        if reason is not None:
            log_once(logger, "Every turn of a conversation is read from its start: %s.", reason)
        return reason is None

    def _keep(self, prompts: Sequence[Sequence[int]], done: Sequence[Completion], rows: list[TurnRow]) -> None:
        """Keep the rows for the next turn, at least their tokens."""
        if self._conversation is not None:
            rows = rows or [TurnRow([*ids, *one.ids]) for ids, one in zip(prompts, done, strict=True)]
            self._conversation.keep(rows, self.version, self.model.device)

    def _masks(self, model: Any, sampling: SamplingSettings) -> list[ThinkingMask]:
        vocabulary = vocabulary_of(model)
        if vocabulary is None:
            return []
        return [ThinkingMask(vocabulary, temperature=sampling.temperature, one_run=True)]

    def _ends(self, model: Any) -> tuple[list[int], int]:
        eos = all_eos_ids(model, self.tokenizer)
        pad = self.tokenizer.pad_token_id
        return eos, pad if pad is not None else eos[0]


@contextmanager
def seeded(device: torch.device, seed: int | None) -> Iterator[None]:
    """Context manager: random numbers by this seed, and the caller's random state as before; None changes nothing."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _generation_config(sampling: SamplingSettings, eos: list[int], pad: int) -> GenerationConfig:
    options: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        names = ("temperature", "top_p", "top_k", "min_p")
        options = {"do_sample": True, **{name: getattr(sampling, name) for name in names}}
    return GenerationConfig(
        max_new_tokens=sampling.max_completion_length,
        eos_token_id=eos,
        pad_token_id=pad,
        repetition_penalty=sampling.repetition_penalty,
        disable_compile=True,
        **options,
    )


def _until_end(ids: list[int], eos: Collection[int]) -> Completion:
    end = next((place for place, token in enumerate(ids, start=1) if token in eos), None)
    return Completion(ids[:end], truncated=end is None)
