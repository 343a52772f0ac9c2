"""The reasoning vocabulary inside vLLM: a logits processor of its v1 interface, named `module:Class`.

Training and `python -m covey.rollout.vllm.serve` pass it if the model has a reasoning vocabulary; elsewhere pass it by
name, `LLM(logits_processors=["covey.rollout.vllm.thinking:ThinkingMask"])` or `--logits-processors`, and only once: two
would add the log share of `same_text` twice. It reads `reasoning_token_map.json` and `tokenizer.json` from the model's
folder; without a map it does nothing. Options per request, in `SamplingParams(extra_args=…)` or `vllm_xargs` over HTTP:

- `thinking_mask`: false leaves the request's logits unchanged;
- `thinking_from`: whether the completion starts `inside` or `outside` of thinking; `prompt` (default) infers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

from covey.model.reasoning_vocab.token_map import MAP_FILE

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

    from covey.model.reasoning_vocab import ReasoningVocabulary


SWITCH, FROM = "thinking_mask", "thinking_from"


@dataclass(slots=True)
class _Request:
    """An active request."""

    output: Sequence[int]
    """Its tokens so far; vLLM appends to the list."""
    temperature: float
    penalty: float
    """Its repetition penalty."""
    seen: set[int]
    """The tokens of its prompt, and those of its completion that `state` includes."""
    state: int
    read: int = 0
    """The number of its tokens that `state` includes."""


class ThinkingMask(LogitsProcessor):
    """Allows reasoning tokens inside of thinking only, with the initial shares of the map."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Check the options of a request. Raises a `ValueError` if one is invalid; vLLM passes this on to the
        client."""
        given = sampling_params.extra_args or {}
        if not isinstance(given.get(SWITCH, True), bool):
            raise ValueError(f"{SWITCH}={given[SWITCH]!r} must be true or false.")
        if given.get(FROM, "prompt") not in ("prompt", "inside", "outside"):
            raise ValueError(f"{FROM}={given[FROM]!r} must be prompt, inside or outside.")

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.vocabulary = _vocabulary(vllm_config.model_config)
        self._requests: dict[int, _Request] = {}
        self._device = device

    def is_argmax_invariant(self) -> bool:
        """Whether greedy decoding is unaffected: only without a reasoning vocabulary."""
        return self.vocabulary is None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Track requests that are added, removed and moved."""
        if batch_update is None or self.vocabulary is None:
            return
        for place in batch_update.removed:
            self._requests.pop(place, None)
        for place, params, prompt, output in batch_update.added:
            self._requests.pop(place, None)
            given = params.extra_args or {}
            if given.get(SWITCH, True):
                state = self._begin(prompt or [], given.get(FROM, "prompt"))
                penalty = float(params.repetition_penalty)
                self._requests[place] = _Request(output, float(params.temperature), penalty, set(prompt or ()), state)
        for origin, target, how in batch_update.moved:
            moved, other = self._requests.pop(origin, None), self._requests.pop(target, None)
            if moved is not None:
                self._requests[target] = moved
            if other is not None and how == MoveDirectionality.SWAP:
                self._requests[origin] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask the logits `[b, V]` of tokens that are not allowed, in place. vLLM applies the repetition penalty and
        divides by the temperature later; everywhere else the penalty comes first."""
        if self.vocabulary is None or not self._requests:
            return logits
        rows = [(place, request) for place, request in self._requests.items() if place < len(logits)]
        for _, request in rows:
            self._read(request)
        width = min(logits.shape[1], self.vocabulary.map.vocab_size)
        for temperature in {request.temperature for _, request in rows}:
            same = [(place, request.state) for place, request in rows if request.temperature == temperature]
            places = torch.tensor([place for place, _ in same], device=logits.device)
            states = torch.tensor([state for _, state in same], device=logits.device)
            bias = self.vocabulary.bias_on(logits.device, temperature).to(logits.dtype)
            added = bias[self.vocabulary.inside(states).long(), :width]
            penalised = [
                (place, *_penalised_later(logits[place], added_V, self._requests[place]))
                for place, added_V in zip(places.tolist(), added, strict=True)
                if self._requests[place].penalty != 1.0
            ]
            logits[places, :width] += added
            for place, seen, values in penalised:
                logits[place, seen] = values
        return logits

    def _begin(self, prompt: Sequence[int], how: str) -> int:
        assert self.vocabulary is not None
        if how != "prompt":
            return self.vocabulary.outside_states if how == "inside" else 0
        return _follow(self.vocabulary.transitions, 0, prompt)

    def _read(self, request: _Request) -> None:
        assert self.vocabulary is not None
        fresh = [token for token in request.output[request.read :] if token >= 0]  # -1: not yet known
        request.state = _follow(self.vocabulary.transitions, request.state, fresh)
        request.seen.update(fresh)
        request.read += len(fresh)


def _penalised_later(
    logits_V: torch.Tensor, added_V: torch.Tensor, request: _Request
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that a request's penalty will change, and logits for them that it turns into those with the bias added
    after it."""
    seen = torch.tensor([token for token in request.seen if token < len(added_V)], device=logits_V.device)
    own, penalty = logits_V[seen], request.penalty
    wanted = torch.where(own < 0, own * penalty, own / penalty) + added_V[seen]
    return seen, torch.where(wanted < 0, wanted / penalty, wanted * penalty)


def _follow(transitions: np.ndarray[Any, Any], state: int, tokens: Sequence[int]) -> int:
    for token in tokens:
        state = int(transitions[state, token])
    return state


def _vocabulary(model_config: Any) -> ReasoningVocabulary | None:
    """The reasoning vocabulary of the engine's model; the tokenizer may be in another folder."""
    for name in (model_config.model, model_config.tokenizer):
        if name and (Path(name) / MAP_FILE).is_file():
            from covey.model.reasoning_vocab import ReasoningVocabulary

            return ReasoningVocabulary.load(name)
    return None
