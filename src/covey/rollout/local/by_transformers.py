"""Completions by transformers' `generate`, where `sample` does not apply: slower, but of every model and option."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.integrations import is_deepspeed_zero3_enabled, is_fsdp_managed_module

from covey.errors import EngineError, TrainingError
from covey.model.base import base_model
from covey.model.device import on_device
from covey.rollout.engine import Completion, SamplingSettings
from covey.rollout.local.compatibility import TOKEN_BY_TOKEN
from covey.rollout.local.supports import FLUSH_EVERY, Supports
from covey.rollout.local.token_sampling import NOT_FINITE, Candidates, LogitsProcessor, in_order, row_keys, row_uniform


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
    config = _generation_config(sampling, eos, pad_token_id, options)
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


def _generation_config(
    sampling: SamplingSettings, eos: list[int], pad: int, more: Mapping[str, Any]
) -> GenerationConfig:
    options: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        options = {name: getattr(sampling, name) for name in ("temperature", "top_p", "min_p")}
        options |= {"do_sample": True, "top_k": sampling.most_kept}
    return GenerationConfig(
        max_new_tokens=sampling.max_completion_length,
        eos_token_id=eos,
        pad_token_id=pad,
        repetition_penalty=sampling.repetition_penalty,
        disable_compile=True,
        **options,
        **more,
    )


def _until_end(ids: list[int], limit: int, eos: Collection[int]) -> Completion:
    end = next((place for place, token in enumerate(ids, start=1) if token in eos), None)
    full = len(ids) == limit
    return Completion(ids[:end], truncated=end is None and full, unfinished=end is None and not full)
