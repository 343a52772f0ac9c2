"""Covey's own engine: a transformers model in this process.

Where `sample` does not apply it uses transformers' `generate`: slower, but of every model and option.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.integrations import is_deepspeed_zero3_enabled, is_fsdp_managed_module

from covey.errors import EngineError, TrainingError
from covey.log_once import log_once
from covey.model.device import base_model, casting_once, evaluating, on_device
from covey.model.load import all_eos_ids
from covey.model.reasoning_vocab.vocabulary import vocabulary_of
from covey.rollout.engine import Capabilities, Completion, NamedWeights, OnEnded, SamplingSettings, cut
from covey.rollout.local.compatibility import (
    TOKEN_BY_TOKEN,
    log_fallback,
    options_of,
    unsupported_option,
    unsupported_reason,
    unsupported_turns,
)
from covey.rollout.local.decode import PlainDecoder
from covey.rollout.local.sampling import sample
from covey.rollout.local.tokens import (
    FLUSH_EVERY,
    NOT_FINITE,
    Candidates,
    LogitsProcessor,
    Supports,
    in_order,
    row_keys,
    row_uniform,
)
from covey.rollout.local.turns import Conversation, Match, Turn, TurnRow
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
        self._packed: dict[Any, PlainDecoder | None] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """All but taking part in others' forwards."""
        can = ("logprobs", "seeded", "reasoning_vocab", "row_limits", "support", "row_seeds", "interruptible")
        return Capabilities(**dict.fromkeys(can, True))

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

    @contextmanager
    def unchanging(self) -> Iterator[None]:
        """Context manager: the weights stay as they are, so that their packed copies serve every call of `generate`."""
        outer, self._packed = self._packed, {}
        try:
            yield
        finally:
            self._packed = outer

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingSettings,
        *,
        seed: int | Sequence[int] | None = None,
        max_lengths: Sequence[int] | None = None,
        interrupted: Callable[[], bool] | None = None,
        on_ended: OnEnded | None = None,
    ) -> list[Completion]:
        """See `InferenceEngine`. The model's mode is restored.

        Args:
            prompts: see `InferenceEngine`. With a seed for each they may end with the beginning of a completion.
            seed: see `InferenceEngine`; or one for each prompt, see `Capabilities.row_seeds`.
            max_lengths: the longest completion of each prompt, where it is below that of the settings.
            interrupted: see `Capabilities.interruptible`.
            on_ended: see `Capabilities.interruptible`; it must not use the model.

        Raises:
            DataError: a prompt holds reasoning tokens, other than those of its row's last turn.
            TrainingError: the logits are not finite.
        """
        row_seeds, of_call = (seed, 0) if isinstance(seed, Sequence) else (None, seed)
        asked = None if interrupted is None else _lasting(interrupted)
        rows: dict[str, Any] = {"row_seeds": row_seeds, "interrupted": asked, "on_ended": on_ended}
        with self._in_use() as model, seeded(model.device, of_call), torch.no_grad():
            found = None
            if self.shared_prefill:
                refusal = unsupported_option(options_of(model))
                found = self._sample(model, prompts, sampling, refusal, max_lengths, **rows)
            if found is not None:
                return found
            return self._by_transformers(model, prompts, sampling, max_lengths, **rows)

    def sync(self, weights: NamedWeights, version: int) -> None:
        """See `InferenceEngine`. Raises an `EngineError` if a weight is unknown, or has another shape."""
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
        *,
        row_seeds: Sequence[int] | None = None,
        interrupted: Callable[[], bool] | None = None,
        on_ended: OnEnded | None = None,
    ) -> list[Completion] | None:
        """By `sample`; None, with a line in the log, where it cannot be used.

        Args:
            model: in use.
            refusal: a reason not to use it, if there is one already.
            interrupted: see `sample`; the answer lasts.
        """
        refusal = refusal or unsupported_reason(model)
        if refusal is not None:
            log_fallback(refusal)
            return None
        eos, pad = self._ends(model)
        matches, keeps = self._matches(model, prompts, begun=row_seeds is not None), self._keeps(model)
        packed = {} if self._packed is None else self._packed
        done, rows = list[Completion](), list[TurnRow]()
        for batch in self._batches(prompts) or [slice(0, 0)]:  # with nothing to do, it may have to take part in others'
            turn = Turn(matches[batch]) if keeps else None
            matches[batch] = [Match()] * len(prompts[batch])  # their keys and values are no longer needed here
            ended = None if on_ended is None else lambda row, one, first=batch.start: on_ended(first + row, one)
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
                row_seeds=None if row_seeds is None else row_seeds[batch],
                interrupted=interrupted,
                on_ended=ended,
                packed=packed,
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
        *,
        row_seeds: Sequence[int] | None = None,
        interrupted: Callable[[], bool] | None = None,
        on_ended: OnEnded | None = None,
        **options: Any,
    ) -> list[Completion]:
        """By `by_transformers`, with further options of `generate`."""
        self._matches(model, prompts, begun=row_seeds is not None)
        (eos, pad), done = self._ends(model), list[Completion]()
        for batch in self._batches(prompts):
            found = by_transformers(
                model,
                prompts[batch],
                sampling,
                eos_token_ids=eos,
                pad_token_id=pad,
                logits_processors=self._masks(model, sampling),
                row_seeds=None if row_seeds is None else row_seeds[batch],
                interrupted=interrupted,
                options=options,
            )
            if max_lengths is not None:
                found = list(map(cut, found, max_lengths[batch]))
            done += found
            for row, one in enumerate(found, start=batch.start):
                if on_ended is not None and not one.unfinished:
                    on_ended(row, one)
        self._keep(prompts, done, [])
        return done

    def _batches(self, prompts: Sequence[Sequence[int]]) -> list[slice]:
        size = self._batch_size or max(len(prompts), 1)
        return [slice(start, start + size) for start in range(0, len(prompts), size)]

    def _matches(self, model: Any, prompts: Sequence[Sequence[int]], *, begun: bool) -> list[Match]:
        """What the last turn holds of these prompts. The rest must be ordinary tokens, unless completions have begun
        in them."""
        matches = [Match()] * len(prompts)
        if self._conversation is not None:
            matches = self._conversation.find(prompts, self.version)
        vocabulary = vocabulary_of(model)
        if vocabulary is not None:
            known = [0 if begun else one.common for one in matches]
            vocabulary.check_prompts([ids[n:] for ids, n in zip(prompts, known, strict=True)], begun=begun)
        return matches

    def _keeps(self, model: Any) -> bool:
        """Whether this turn's keys and values are kept for the next; if a model cannot, with a line in the log."""
        if self._conversation is None:
            return False
        reason = unsupported_turns(model)
        if reason is not None:
            log_once(logger, "Every turn of a conversation is read from its start: %s.", reason, shown=False)
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


def _lasting(interrupted: Callable[[], bool]) -> Callable[[], bool]:
    """The same, which is not asked again once it was true."""
    found = False

    def ask() -> bool:
        nonlocal found
        found = found or interrupted()
        return found

    return ask


def by_transformers(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingSettings,
    *,
    eos_token_ids: Collection[int],
    pad_token_id: int,
    logits_processors: Sequence[LogitsProcessor],
    row_seeds: Sequence[int] | None,
    interrupted: Callable[[], bool] | None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> list[Completion]:
    """One completion per prompt; see `sample` for most arguments, of which this has those that make sense here.

    Args:
        options: further ones of `generate`, which the settings do not know.

    Raises:
        EngineError: log-probabilities or seeds of rows are asked for, and the model generates in a way of its own.
    """
    if interrupted is not None and interrupted():
        none: list[float] | None = [] if sampling.logprobs else None
        return [Completion([], truncated=False, logps=none, unfinished=True) for _ in prompts]
    eos = list(dict.fromkeys((*eos_token_ids, *sampling.stop_token_ids)))
    longest, device = max(map(len, prompts)), model.device
    inputs: dict[str, Any] = {
        "input_ids": on_device([[pad_token_id] * (longest - len(ids)) + list(ids) for ids in prompts], device),
        "attention_mask": on_device([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts], device),
    }
    if interrupted is not None:
        inputs["stopping_criteria"] = StoppingCriteriaList([_Interruption(interrupted)])
    own = None
    if sampling.logprobs or row_seeds is not None or (sampling.support and sampling.truncates):
        keys_B2 = None if row_seeds is None else on_device(row_keys(row_seeds), device)
        own = inputs["custom_generate"] = _Decoding(sampling, on_device(list(map(len, prompts)), device), keys_B2)
    sampled: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        sampled = {name: getattr(sampling, name) for name in ("temperature", "top_p", "min_p")}
        sampled |= {"do_sample": True, "top_k": sampling.most_kept}
    config = GenerationConfig(
        max_new_tokens=sampling.max_completion_length,
        eos_token_id=eos,
        pad_token_id=pad_token_id,
        repetition_penalty=sampling.repetition_penalty,
        disable_compile=True,
        **sampled,
        **options,
    )
    output_BS = model.generate(**inputs, generation_config=config, logits_processor=list(logits_processors))
    output_BT = output_BS[:, longest:]
    completions = [_until_end(ids, sampling.max_completion_length, eos) for ids in output_BT.tolist()]
    return completions if own is None else own.complete(completions, output_BT, base_model(model))


class _Decoding:
    """Passed to `generate` as `custom_generate`: its own sampling with one more step, after all processors.

    That step keeps the log-probability of each sampled token, and the tokens that could be sampled; with seeds of rows
    it samples the token itself, and leaves no other.
    """

    def __init__(self, sampling: SamplingSettings, lengths_B: torch.Tensor, keys_B2: torch.Tensor | None) -> None:
        self._sampling = sampling
        self._lengths_B = lengths_B
        self._keys_B2 = keys_B2
        self._width = 0
        self._scores_BV: torch.Tensor | None = None  # of the next token, which is not sampled yet
        self._logps = list[torch.Tensor]()  # of each place, [B]
        self._valid = torch.ones((), dtype=torch.bool, device=lengths_B.device)
        self._supports = Supports(len(lengths_B))

    def __call__(
        self, model: Any, input_ids: torch.Tensor, logits_processor: Any, generation_config: Any, **options: Any
    ) -> Any:
        """See the argument `custom_generate` of transformers' `generate`."""
        mode = generation_config.get_generation_mode()
        if mode not in TOKEN_BY_TOKEN:
            raise EngineError(
                f"The model's generation config asks for {mode.value.replace('_', ' ')}, whose tokens have no "
                "log-probabilities and no random numbers of their own: remove it from generation_config.json."
            )
        self._width = input_ids.shape[1]
        processors = LogitsProcessorList([*logits_processor, self._step])
        sharded = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
        options |= {"logits_processor": processors, "generation_config": generation_config, "synced_gpus": sharded}
        return GenerationMixin._sample(model, input_ids, **options)

    def _step(self, ids_BS: torch.Tensor, scores_BV: torch.Tensor) -> torch.Tensor:
        """Keep what is to be returned of a token's scores, which transformers samples from."""
        self._keep_logps(ids_BS[:, -1])
        if self._sampling.temperature > 0:
            place = ids_BS.shape[1] - self._width
            candidates = Candidates(*in_order(scores_BV, self._sampling), self._sampling)
            support_BC = candidates.support() if self._sampling.support else None
            if support_BC is not None:
                self._supports.add(range(len(ids_BS)), [place] * len(ids_BS), support_BC)
                self._supports.flush(FLUSH_EVERY)
                scores_BV = candidates.spread(scores_BV)
            if self._keys_B2 is not None:
                sampled = candidates.draw(row_uniform(self._keys_B2, self._lengths_B + place))
                self._valid &= sampled.valid_b.all()
                self._scores_BV = scores_BV
                return torch.full_like(scores_BV, -torch.inf).scatter_(1, sampled.tokens_b[:, None], 0.0)
        self._scores_BV = scores_BV
        return scores_BV

    def _keep_logps(self, tokens_B: torch.Tensor) -> None:
        """Keep the log-probabilities of the tokens that were sampled from the last scores."""
        if self._scores_BV is not None and self._sampling.logprobs:
            at_tokens_B = self._scores_BV.gather(1, tokens_B[:, None])[:, 0]
            self._logps.append(at_tokens_B - self._scores_BV.logsumexp(-1))

    def complete(self, completions: Sequence[Completion], output_BT: torch.Tensor, base: Any) -> list[Completion]:
        """The completions with log-probabilities and supports.

        Args:
            output_BT: all sampled tokens.
        """
        if self._scores_BV is None:
            raise EngineError(
                f"This {type(base).__name__} has a generate of its own, which returns no log-probabilities and takes "
                "no seeds of completions."
            )
        self._keep_logps(output_BT[:, -1])
        if not self._valid:
            raise TrainingError(NOT_FINITE)
        logps = torch.stack(self._logps, dim=1).tolist() if self._logps else None
        return [
            replace(
                one,
                logps=None if logps is None else logps[row][: one.length],
                support=self._supports.read(row, one.length),
            )
            for row, one in enumerate(completions)
        ]


class _Interruption(StoppingCriteria):
    """Ends all rows as soon as a function returns true."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self._interrupted(), dtype=torch.bool, device=input_ids.device)


def _until_end(ids: list[int], limit: int, eos: Collection[int]) -> Completion:
    end = next((place for place, token in enumerate(ids, start=1) if token in eos), None)
    full = len(ids) == limit
    return Completion(ids[:end], truncated=end is None and full, unfinished=end is None and not full)
