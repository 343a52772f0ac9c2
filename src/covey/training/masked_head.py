"""Scoring under a reasoning vocabulary: a token's probability among the tokens that could be drawn in its place.

The head of TRL computes log-probabilities in tiles from hidden states and the head's weight, and knows one bias for all
places. The places are parted by state: outside of thinking the head is the ordinary one (the rows before the copies),
inside it is the whole head, with the bias of that state. Both are the head's own computation, so that it costs what the
tokens cost that could be drawn, and all that TRL's head does (tiles, kernels, temperature, scale) is done.

Knows the calling convention of the head's function, and is given the module in which that is looked up.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType, ModuleType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.vocabulary import INSIDE, OUTSIDE

logger = logging.getLogger(__name__)

STATES = "covey_thinks"
"""The name under which a model's forward takes whether each place to be scored is inside of thinking."""

NEVER = -3e4
"""Bias of a token that cannot be drawn: finite in every number type, and zero as a probability."""

Scores = tuple[torch.Tensor | None, ...]


def mask_head(model: Any, vocabulary: ReasoningVocabulary, home: ModuleType, function: str) -> None:
    """Let a model's forward with `fused_lm_head=True` score by the reasoning vocabulary.

    Without `covey_thinks=` (`[1, S]`, with `shift_labels=`) the forward finds the states of its own `input_ids`.

    Args:
        model: whose forward has the fused head, without wrappers.
        vocabulary: of the model.
        home: the module in which the fused head looks its function up.
        function: under which name.
    """
    own_forward = model.forward
    head = model.get_output_embeddings()
    if not hasattr(head, "bias"):  # peft's wrapper around a head with trained rows tells of the weight alone
        object.__setattr__(head, "bias", getattr(head.original_module, "bias", None))  # not a parameter of the wrapper

    @functools.wraps(own_forward.__func__)
    def forward(self: Any, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        if not fused_lm_head:
            return own_forward(*args, **kwargs)
        if isinstance(getattr(home, function), _Parted):  # this forward is wrapped twice
            return own_forward(*args, fused_lm_head=True, **kwargs)
        thinks = kwargs.pop(STATES, None)
        if thinks is None:
            states_BS = vocabulary.states(kwargs["input_ids"], kwargs.get("attention_mask"))
            thinks, scored = vocabulary.inside(states_BS)[:, :-1], kwargs["labels"][:, 1:] != -100
        else:
            scored = kwargs["shift_labels"] != -100
        with _standing_in(home, function, _Parted(vocabulary, getattr(home, function), thinks, scored)):
            return own_forward(*args, fused_lm_head=True, **kwargs)

    model.forward = MethodType(forward, model)


class _Parted:
    """Stands for the head's function within one forward pass.

    Args:
        whole: the function that it stands for.
        thinks: whether each place is inside of thinking.
        scored: whether each place has a label; the same shape.
    """

    def __init__(self, vocabulary: ReasoningVocabulary, whole: Any, thinks: torch.Tensor, scored: torch.Tensor) -> None:
        self._vocabulary, self._whole, self._thinks, self._scored = vocabulary, whole, thinks, scored

    def apply(
        self,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: tuple[str, ...],
    ) -> Scores:
        """See the function that this stands for. Some hand over all places, some only those with a label."""
        first = self._vocabulary.map.base_vocab_size
        self._vocabulary.map.check_rows(_rows(weight_VH), "the model that is scored")
        all_places = len(hidden_NH) == self._thinks.numel()
        thinks_N = self._thinks.flatten() if all_places else self._thinks[self._scored]
        thinks_N = thinks_N.to(hidden_NH.device)
        rest = (temperature, chunk_size, softcap, scale, outputs)
        parts, places = [], []
        for state in (OUTSIDE, INSIDE):
            at = (thinks_N == bool(state)).nonzero().squeeze(1)
            if not len(at) and (state == INSIDE or bool(thinks_N.numel())):
                continue
            # DeepSpeed gathers whole parameters only, so there the ordinary rows are told from the others by the bias.
            taken = slice(first) if state == OUTSIDE and not hasattr(weight_VH, "ds_status") else slice(None)
            own_bias = None if bias_V is None else bias_V[taken]
            hidden, weight, targets = hidden_NH[at], weight_VH[taken], targets_N[at]
            if softcap is not None:
                capped = (temperature, softcap, scale, "entropy" in outputs)
                parts.append(self._capped(hidden, weight, own_bias, targets, state, *capped))
            else:
                if taken != slice(first):
                    added = self._bias(state, weight_VH, temperature, scale)
                    own_bias = added if own_bias is None else own_bias + added
                parts.append(self._whole.apply(hidden, weight, own_bias, targets, *rest))
            places.append(at)
        if len(parts) == 1:
            return tuple(parts[0])
        back_N = torch.cat(places).argsort()
        columns = zip(*parts, strict=True)
        return tuple(None if column[0] is None else torch.cat(column)[back_N] for column in columns)

    def _bias(self, state: int, weight_VH: torch.Tensor, temperature: float, scale: float) -> torch.Tensor:
        """What is added to the products of this state, before scale and temperature, `[V]`."""
        dtype = weight_VH.dtype if weight_VH.dtype.is_floating_point else torch.float32
        bias_V = self._vocabulary.bias_on(weight_VH.device, temperature)[state] / scale
        return bias_V.clamp(min=NEVER).to(dtype)

    def _capped(
        self,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        state: int,
        temperature: float,
        softcap: float,
        scale: float,
        with_entropy: bool,
    ) -> Scores:
        """The same for a head that bounds its logits: a bias before the bound would be bounded with them.

        Computed some places at a time, and again in the backward pass.
        """
        say_capped()
        V = weight_VH.shape[0]
        after_V = self._vocabulary.bias_on(weight_VH.device, temperature)[state][:V].clamp(min=NEVER)

        def some(
            hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            logits = torch.nn.functional.linear(hidden, weight.to(hidden.dtype), bias_V).float() * scale
            logits = (torch.tanh(logits / softcap) * softcap + after_V) / temperature
            logps = logits.log_softmax(-1)
            return logps.gather(1, targets[:, None]).squeeze(1), -(logps.exp() * logps).sum(-1)

        rows = max(1, 2**24 // V)
        found = [
            checkpoint(some, hidden_NH[at : at + rows], weight_VH, targets_N[at : at + rows], use_reentrant=False)
            for at in range(0, max(len(hidden_NH), 1), rows)
        ]
        logps_N, entropy_N = (torch.cat(pieces) for pieces in zip(*found, strict=True))
        return logps_N, entropy_N if with_entropy else None, None, None, None


@functools.cache
def say_capped() -> None:
    """Log once that this head is computed by the slower path."""
    logger.warning(
        "The model bounds its logits (final_logit_softcapping), so that under a reasoning vocabulary they are scored "
        "in plain PyTorch rather than by the fused head: the same numbers, more slowly."
    )


def states_of(vocabulary: ReasoningVocabulary | None) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """From ids and mask `[B, S]` to whether what follows each token is inside of thinking; None without vocabulary."""
    if vocabulary is None:
        return None
    return lambda ids_BS, mask_BS: vocabulary.inside(vocabulary.states(ids_BS, mask_BS))


@contextmanager
def _standing_in(home: ModuleType, name: str, stand_in: Any) -> Iterator[None]:
    own = getattr(home, name)
    setattr(home, name, stand_in)
    try:
        yield
    finally:
        setattr(home, name, own)


def _rows(weight_VH: torch.Tensor) -> int:
    return int(getattr(weight_VH, "ds_shape", weight_VH.shape)[0])
