"""The reasoning vocabulary during sampling: which tokens may come next, inside and outside of thinking."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from covey.model.device import base_model
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.vocabulary import INSIDE

TAIL = 64
"""Last tokens that are compared to recognise a sequence from one call to the next."""


class ThinkingMask:
    """A logits processor that allows reasoning tokens inside of thinking only.

    For `covey.rollout.sample` (which passes the row numbers) and for transformers' `generate(logits_processor=[…])`.
    It reads a prompt once, then one token per row and step. Rows do not affect each other.

    Args:
        vocabulary: of the model.
        temperature: by which logits are divided afterwards; 0 for greedy. `same_text` needs it.
        one_run: whether all calls are of one run without beams, so that rows with one column more are those of the
            call before. Otherwise their tokens are compared, for which a GPU waits at every token.
    """

    def __init__(self, vocabulary: ReasoningVocabulary, *, temperature: float = 1.0, one_run: bool = False) -> None:
        self.vocabulary = vocabulary
        self.temperature = temperature
        self._one_run = one_run
        self._rows_b: torch.Tensor | None = None
        self._changed = False
        self._states_B = torch.empty(0, dtype=torch.long)
        self._tail_bS: torch.Tensor | None = None
        share = vocabulary.log_share[: vocabulary.map.vocab_size] * temperature
        self._shares = bool(share.any())
        self._unusable = torch.tensor(sorted(vocabulary.map.unusable), dtype=torch.long)

    def select_rows(self, rows_b: torch.Tensor) -> None:
        """From the next call on, row `i` is completion `rows_b[i]`; see `covey.rollout.RowAware`."""
        self._rows_b, self._changed = rows_b, True

    def __call__(self, sequences_bS: torch.Tensor, logits_bV: torch.Tensor) -> torch.Tensor:
        """Mask the logits of tokens that are not allowed, in place.

        Args:
            sequences_bS: the tokens so far, padded on the left.
            logits_bV: of the next token.

        Raises:
            ModelError: the logits have another vocabulary size.
        """
        vocabulary = self.vocabulary
        vocabulary.map.check_rows(logits_bV.shape[1], "this model")
        states_b = self._by_content(sequences_bS) if self._rows_b is None else self._by_row(sequences_bS, self._rows_b)
        inside_b = vocabulary.inside(states_b)
        if logits_bV.device.type != "cpu":
            bias_2V = vocabulary.bias_on(logits_bV.device, self.temperature)
            return logits_bV.add_(bias_2V[inside_b.long()])
        # On a CPU only the logits that change are written: a pass over all of them costs more than the rest.
        first = vocabulary.map.base_vocab_size
        for logits_V, inside in zip(logits_bV, inside_b.tolist(), strict=True):
            if not inside:
                logits_V[first:] = -torch.inf
            elif self._shares:
                logits_V += vocabulary.bias_on(logits_bV.device, self.temperature)[INSIDE]
            else:
                logits_V[self._unusable] = -torch.inf
        return logits_bV

    def _by_row(self, sequences_bS: torch.Tensor, rows_b: torch.Tensor) -> torch.Tensor:
        """The states of numbered rows; -1 marks a new row."""
        before_b = self._states_B[rows_b] if not self._changed else self._with_room(rows_b)[rows_b]
        after_b = self.vocabulary.step(before_b.clamp(min=0), sequences_bS[:, -1])
        if self._changed:  # else no row is new, and a GPU need not be synchronised
            new_b = before_b < 0
            if bool(new_b.any()):
                after_b[new_b] = self.vocabulary.states(sequences_bS[new_b])[:, -1]
            self._changed = False
        self._states_B[rows_b] = after_b
        return after_b

    def _with_room(self, rows_b: torch.Tensor) -> torch.Tensor:
        rows = int(rows_b.max()) + 1
        if rows > len(self._states_B):
            grown_B = torch.full((rows,), -1, dtype=torch.long, device=rows_b.device)
            grown_B[: len(self._states_B)] = self._states_B
            self._states_B = grown_B
        return self._states_B

    def _by_content(self, sequences_bS: torch.Tensor) -> torch.Tensor:
        """The states of rows that have one token more than in the last call; others are read from the start."""
        tail = self._tail_bS
        before_bS = sequences_bS[:, :-1][:, -TAIL:]
        width = before_bS.shape[1]
        same = tail is not None and len(tail) == len(before_bS) and tail.shape[1] >= width > 0
        if same and tail is not None and (self._one_run or torch.equal(tail[:, -width:], before_bS)):
            states_b = self.vocabulary.step(self._states_B, sequences_bS[:, -1])
        else:
            states_b = self.vocabulary.states(sequences_bS)[:, -1]
        self._tail_bS, self._states_B = sequences_bS[:, -TAIL:], states_b
        return states_b


@contextmanager
def masked_generation(model: Any, vocabulary: ReasoningVocabulary | None, temperature: float) -> Iterator[None]:
    """Context manager: the model's own `generate` respects the reasoning vocabulary, whoever calls it.

    Args:
        model: a transformers model, with or without adapters.
        vocabulary: None changes nothing.
        temperature: see `ThinkingMask`.
    """
    if vocabulary is None:
        yield
        return
    inner = base_model(model)
    generate, own = inner.generate, vars(inner).get("generate")

    def masked(*args: Any, logits_processor: Any = (), **kwargs: Any) -> Any:
        settings = kwargs.get("generation_config") or inner.generation_config
        one_run = (kwargs.get("num_beams") or settings.num_beams or 1) == 1 and "assistant_model" not in kwargs
        mask = ThinkingMask(vocabulary, temperature=temperature, one_run=one_run)
        masks = [*(logits_processor or ()), mask]
        return generate(*args, logits_processor=masks, **kwargs)

    inner.generate = masked
    try:
        yield
    finally:
        del inner.generate  # restores the class's method
        if own is not None:
            inner.generate = own
