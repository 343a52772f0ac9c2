"""Scoring under a reasoning vocabulary: a token's probability among the tokens that could be sampled in its place.

TRL's head computes log-probs in tiles from hidden states and the head's weight, with one bias for all positions. Here
positions are split by state: outside of thinking the head has the ordinary rows only (those before the copies), inside
it has all rows, with the bias of that state. Both call TRL's own function, so the cost is that of the tokens that could
be sampled, and its tiles, kernels, temperature and scale apply.

Knows the calling convention of the head's function, `trl.trainer.utils._ChunkedLogProbFunction`.
"""

from __future__ import annotations

import functools
import logging
from types import MethodType
from typing import Any

import torch
import trl.trainer.utils
from torch.utils.checkpoint import checkpoint

from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.vocabulary import INSIDE, OUTSIDE
from covey.training.replaced import replaced
from covey.training.scoring.shared_scoring import STATES

logger = logging.getLogger(__name__)

_TRL: Any = trl.trainer.utils
"""The module in which the fused head looks up its function."""

NEVER = -3e4
"""Bias of a token that cannot be sampled: finite in every dtype, and zero as a probability."""

Scores = tuple[torch.Tensor | None, ...]


def mask_head(model: Any, vocabulary: ReasoningVocabulary) -> None:
    """Make a model's forward with `fused_lm_head=True` score by the reasoning vocabulary.

    Without `covey_thinks=` (`[1, M]`, with `shift_labels=`) the forward computes the states of its `input_ids`.

    Args:
        model: without wrappers, with TRL's fused head.
        vocabulary: of the model.
    """
    own_forward = model.forward
    head = model.get_output_embeddings()
    if not hasattr(head, "bias"):  # peft's wrapper of a head with trainable rows has only the weight
        object.__setattr__(head, "bias", getattr(head.original_module, "bias", None))  # not a parameter of the wrapper

    @functools.wraps(own_forward.__func__)
    def forward(self: Any, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        if not fused_lm_head:
            return own_forward(*args, **kwargs)
        if isinstance(_TRL._ChunkedLogProbFunction, _MaskedLogProb):  # this forward is wrapped twice
            return own_forward(*args, fused_lm_head=True, **kwargs)
        thinks = kwargs.pop(STATES, None)
        if thinks is None:
            states_BS = vocabulary.states(kwargs["input_ids"], kwargs.get("attention_mask"))
            thinks, scored = vocabulary.inside(states_BS)[:, :-1], kwargs["labels"][:, 1:] != -100
        else:
            scored = kwargs["shift_labels"] != -100
        masked = _MaskedLogProb(vocabulary, _TRL._ChunkedLogProbFunction, thinks, scored)
        with replaced(_TRL, _ChunkedLogProbFunction=masked):
            return own_forward(*args, fused_lm_head=True, **kwargs)

    model.forward = MethodType(forward, model)


class _MaskedLogProb:
    """Replaces the head's function within one forward pass.

    Args:
        original: the replaced function.
        thinks: whether each position is inside of thinking.
        scored: whether each position has a label; the same shape.
    """

    def __init__(
        self, vocabulary: ReasoningVocabulary, original: Any, thinks: torch.Tensor, scored: torch.Tensor
    ) -> None:
        self._vocabulary, self._original, self._thinks, self._scored = vocabulary, original, thinks, scored

    def apply(
        self,
        hidden_ME: torch.Tensor,
        weight_VE: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_M: torch.Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: tuple[str, ...],
    ) -> Scores:
        """As the replaced function. Some callers pass all positions, some only those with a label."""
        first = self._vocabulary.map.base_vocab_size
        rows = int(getattr(weight_VE, "ds_shape", weight_VE.shape)[0])
        self._vocabulary.map.check_rows(rows, "the model that is scored")
        all_positions = len(hidden_ME) == self._thinks.numel()
        thinks_M = self._thinks.flatten() if all_positions else self._thinks[self._scored]
        thinks_M = thinks_M.to(hidden_ME.device)
        rest = (temperature, chunk_size, softcap, scale, outputs)
        parts, positions = [], []
        for state in (OUTSIDE, INSIDE):
            at = (thinks_M == bool(state)).nonzero().squeeze(1)
            if not len(at) and (state == INSIDE or bool(thinks_M.numel())):
                continue
            # DeepSpeed gathers whole parameters only, so there the bias masks the copies.
            taken = slice(first) if state == OUTSIDE and not hasattr(weight_VE, "ds_status") else slice(None)
            own_bias = None if bias_V is None else bias_V[taken]
            hidden, weight, targets = hidden_ME.index_select(0, at), weight_VE[taken], targets_M[at]
            if softcap is not None:
                softcapped = (temperature, softcap, scale, "entropy" in outputs)
                parts.append(self._softcapped(hidden, weight, own_bias, targets, state, *softcapped))
            else:
                if taken != slice(first):
                    added = self._bias(state, weight_VE, temperature, scale)
                    own_bias = added if own_bias is None else own_bias + added
                parts.append(self._original.apply(hidden, weight, own_bias, targets, *rest))
            positions.append(at)
        if len(parts) == 1:
            return tuple(parts[0])
        back_M = torch.cat(positions).argsort()
        columns = zip(*parts, strict=True)
        return tuple(None if column[0] is None else torch.cat(column).index_select(0, back_M) for column in columns)

    def _bias(self, state: int, weight_VE: torch.Tensor, temperature: float, scale: float) -> torch.Tensor:
        """The bias of this state, added before scale and temperature, `[V]`."""
        dtype = weight_VE.dtype if weight_VE.dtype.is_floating_point else torch.float32
        bias_V = self._vocabulary.bias_on(weight_VE.device, temperature)[state] / scale
        return bias_V.clamp(min=NEVER).to(dtype)

    def _softcapped(
        self,
        hidden_ME: torch.Tensor,
        weight_VE: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_M: torch.Tensor,
        state: int,
        temperature: float,
        softcap: float,
        scale: float,
        with_entropy: bool,
    ) -> Scores:
        """The same for a head with softcapped logits, where the bias must come after the cap.

        Computed for some positions at a time, and recomputed in the backward pass.
        """
        _warn_softcap()
        V = weight_VE.shape[0]
        after_V = self._vocabulary.bias_on(weight_VE.device, temperature)[state][:V].clamp(min=NEVER)

        def chunk(
            hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            logits = torch.nn.functional.linear(hidden, weight.to(hidden.dtype), bias_V).float() * scale
            logits = (torch.tanh(logits / softcap) * softcap + after_V) / temperature
            logps = logits.log_softmax(-1)
            return logps.gather(1, targets[:, None]).squeeze(1), -(logps.exp() * logps).sum(-1)

        rows = max(1, 2**24 // V)
        found = [
            checkpoint(chunk, hidden_ME[at : at + rows], weight_VE, targets_M[at : at + rows], use_reentrant=False)
            for at in range(0, max(len(hidden_ME), 1), rows)
        ]
        logps_M, entropy_M = (torch.cat(chunks) for chunks in zip(*found, strict=True))
        return logps_M, entropy_M if with_entropy else None, None, None, None


@functools.cache
def _warn_softcap() -> None:
    """Log once that the slower path is used."""
    logger.warning(
        "The model caps its logits (final_logit_softcapping), so under a reasoning vocabulary they are scored "
        "in plain PyTorch instead of the fused head: the same numbers, more slowly."
    )
