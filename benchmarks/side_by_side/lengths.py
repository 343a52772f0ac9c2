"""Completions of given lengths: the end-of-sequence token comes exactly then, in whichever engine samples.

A model of random weights does not end at a useful place. A logits processor decides instead: it masks EOS before a
completion's length and everything else at it. It identifies a row by its tokens (the prompt, and the first four sampled
ones), so an engine may reorder its rows, drop finished ones, or sample one group after another. It costs each engine
the same few small operations per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, PreTrainedModel
from transformers.generation.continuous_batching.utils import WorkloadHints

KEY = 4
"""Tokens that identify a row among those of its prompt."""


class ForcedLengths(LogitsProcessor):  # type: ignore[misc]
    """Ends every row at its length."""

    supports_continuous_batching = False

    def __init__(self, eos: int) -> None:
        self._eos = eos
        self._length = 0
        self._waiting: dict[tuple[int, ...], list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._table = (torch.empty(0), torch.empty(0))

    def plan(self, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
        """Set the rows of the coming generation batch.

        Args:
            prompts: token ids, `[B]` rows of one length; the rows of a group are equal.
            lengths: tokens of each row's completion, `[B]`.
        """
        (self._length,) = {len(prompt) for prompt in prompts}
        self._waiting = {}
        self._lengths = {}
        for prompt, length in zip(prompts, lengths, strict=True):
            self._waiting.setdefault(tuple(prompt), []).append(length)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mask the scores `[rows, V]` of the next token.

        Args:
            input_ids: prompts and what has been drawn so far, `[rows, L + drawn]`.
            scores: changed in place.
        """
        drawn = input_ids.shape[1] - self._length
        if drawn >= KEY:
            keys = self._keys(input_ids)
            if drawn == KEY:
                self._assign(input_ids, keys)
            known, lengths = self._table
            last = drawn + 1 >= lengths[torch.searchsorted(known, keys)]
            scores.masked_fill_(last.unsqueeze(1), -torch.inf)
            scores[:, self._eos] = torch.where(last, 0.0, -torch.inf).to(scores.dtype)
        else:
            scores[:, self._eos] = -torch.inf
        return scores

    def _keys(self, input_ids: torch.Tensor) -> torch.Tensor:
        """One number per row: its first tokens, mixed."""
        tokens = input_ids[:, self._length : self._length + KEY]
        key = tokens[:, 0]
        for place in range(1, KEY):
            key = key * 1_000_003 + tokens[:, place]
        return key

    def _assign(self, input_ids: torch.Tensor, keys: torch.Tensor) -> None:
        """Give every new row the next length of its prompt."""
        prompts = input_ids[:, : self._length].tolist()
        for prompt, key in zip(prompts, keys.tolist(), strict=True):
            if key in self._lengths:
                raise RuntimeError("Two completions start with the same four tokens: measure with another seed.")
            self._lengths[key] = self._waiting[tuple(prompt)].pop(0)
        known = sorted(self._lengths)
        lengths = [self._lengths[key] for key in known]
        self._table = (torch.tensor(known, device=keys.device), torch.tensor(lengths, device=keys.device))


def force(model: PreTrainedModel, processor: ForcedLengths, eos: int, lengths_now: Any) -> None:
    """Let transformers' own sampling of this model end its completions at their lengths.

    Args:
        model: changed: its `generate` takes the processor, its `generate_batch` a length per request.
        processor: the lengths.
        eos: end-of-sequence id, which continuous batching is not to draw; its last tokens are replaced by it.
        lengths_now: gives the lengths of the batch in hand, in the order of its rows.
    """
    generate = model.generate

    def generate_forced(*args: Any, **kwargs: Any) -> Any:
        processors = [*(kwargs.pop("logits_processor", None) or []), processor]
        return generate(*args, logits_processor=processors, **kwargs)

    def generate_batch_forced(
        prompts: list[list[int]], generation_config: Any, continuous_batching_config: Any, progress_bar: bool = False
    ) -> dict[str, Any]:
        return continuous_batch(model, prompts, lengths_now(), eos, generation_config, continuous_batching_config)

    model.generate = generate_forced
    model.generate_batch = generate_batch_forced


@torch.no_grad()
def continuous_batch(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    lengths: Sequence[int],
    eos: int,
    generation_config: Any,
    continuous_batching_config: Any,
) -> dict[str, Any]:
    """What `generate_batch` does, with a length per request: its processors do not know which row they get."""
    hints = WorkloadHints(
        max_prompt_length=max(map(len, prompts)), max_generated_length=max(lengths), num_requests=len(prompts)
    )
    finished: dict[str, Any] = {}
    with model.continuous_batching_context_manager(
        generation_config=generation_config,
        continuous_batching_config=continuous_batching_config,
        timeout=5,
        workload_hints=hints,
    ) as manager:
        names = [
            manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        while len(finished) < len(prompts):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                finished[result.request_id] = result
            elif result is None and not manager.is_running():
                raise RuntimeError("continuous batching stopped before all completions were done")
    for result in finished.values():
        if result.error is not None:
            raise RuntimeError(f"continuous batching failed: {result.error}")
        result.generated_tokens[-1] = eos
    return {name: finished[name] for name in names}
