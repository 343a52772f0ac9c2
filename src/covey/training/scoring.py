"""Log-probabilities of completions, with the prompt of a group computed once and no padding computed at all.

The rows of a batch are packed into one row of real tokens (see `covey.model.group_attention`), which goes through the
model in one forward pass, so that whatever wraps the model (DDP, FSDP, adapters, autocast, gradient checkpointing)
works as ever. Only the hidden states from which a completion token is predicted reach the head. The head is the one
that the plain path uses: it works in tiles, so that `[B, T, V]` is never held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from accelerate.utils import extract_model_from_parallel, is_compiled_module
from transformers import PreTrainedModel

from covey.model.group_attention import LAYOUT, NO_MASK, Group, GroupLayout, reason_against, share_prompts
from covey.model.norms import write_out_norms
from covey.training.masked_head import STATES

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackedRows:
    """B rows of L prompt and T completion tokens as one row of N tokens, S of which are completion tokens.

    Rows that follow each other and have the same prompt share it.
    """

    layout: GroupLayout
    token_index: torch.Tensor
    """Where each packed token lies in the flattened `[B, L + T]`: `[N]`."""
    position: torch.Tensor
    """Position of each packed token within its row, padding not counted: `[N]`."""
    predictor: torch.Tensor
    """Which packed token predicts each completion token, the one before it or the prompt's last one: `[S]`."""
    target_index: torch.Tensor
    """Where each completion token lies in the flattened `[B, T]`: `[S]`."""


def pack(input_ids_BS: torch.Tensor, mask_BS: torch.Tensor, length_T: int) -> PackedRows | None:
    """Lay out a batch so that equal prompts of rows that follow each other are there once.

    Args:
        input_ids_BS: prompts, padded on the left, and completions, padded on the right: `[B, L + T]`.
        mask_BS: 1 for tokens, 0 for padding.
        length_T: T, the number of completion columns.

    Returns:
        The layout; None if a row has no prompt, or its padding lies elsewhere.
    """
    ids_BS, mask_BS = input_ids_BS.cpu(), mask_BS.cpu().bool()
    rows, width = ids_BS.shape
    prompt_ids, prompt_mask, completion_mask = ids_BS[:, :-length_T], mask_BS[:, :-length_T], mask_BS[:, -length_T:]
    if not (
        prompt_mask.size(1)
        and prompt_mask[:, -1].all()
        and (prompt_mask[:, 1:] >= prompt_mask[:, :-1]).all()
        and (completion_mask[:, 1:] <= completion_mask[:, :-1]).all()
    ):
        return None
    new_B = torch.ones(rows, dtype=torch.bool)
    same_token = (prompt_ids[1:] == prompt_ids[:-1]) | ~prompt_mask[1:]
    new_B[1:] = ~(same_token & (prompt_mask[1:] == prompt_mask[:-1])).all(1)
    kept_BS = mask_BS.clone()
    kept_BS[~new_B, :-length_T] = False
    packed_BS = kept_BS.flatten().cumsum(0).view(rows, width) - 1
    prompt_end_B = packed_BS[:, -length_T - 1][new_B][new_B.cumsum(0) - 1]
    predictor_BT = packed_BS[:, -length_T:] - 1
    predictor_BT[:, 0] = prompt_end_B
    device = input_ids_BS.device
    return PackedRows(
        _layout(new_B.tolist(), prompt_mask.sum(1).tolist(), completion_mask.sum(1).tolist()),
        kept_BS.flatten().nonzero().squeeze(1).to(device),
        (mask_BS.cumsum(1) - 1)[kept_BS].to(device),
        predictor_BT[completion_mask].to(device),
        completion_mask.flatten().nonzero().squeeze(1).to(device),
    )


def _layout(new: list[bool], prompts: list[int], completions: list[int]) -> GroupLayout:
    starts = [row for row, is_new in enumerate(new) if is_new]
    groups = (
        Group(prompts[start], tuple(size for size in completions[start:end] if size))
        for start, end in zip(starts, [*starts[1:], len(new)], strict=True)
    )
    return GroupLayout(tuple(groups))


class SharedScoring:
    """Scores rows with shared prompts, and remembers for which models it cannot.

    The model's forward must take `shift_labels` and `fused_lm_head=True`, and then return `log_probs` and `entropy` for
    each hidden state that leaves the backbone.
    """

    def __init__(
        self, *, on: bool = True, thinks: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        """Take what to do.

        Args:
            on: whether to share at all.
            thinks: under a reasoning vocabulary, from ids and mask `[B, S]` to whether what follows each token is
                inside of thinking.
        """
        self._on = on
        self._thinks = thinks
        self._reasons: WeakKeyDictionary[torch.nn.Module, str | None] = WeakKeyDictionary()
        self._said: set[str] = set()

    def score(
        self,
        model: torch.nn.Module,
        input_ids_BS: torch.Tensor,
        mask_BS: torch.Tensor,
        length_T: int,
        *,
        rows_at_once: int | None = None,
        whole: int = 1,
        compute_entropy: bool = False,
        **more: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None] | None:
        """Log-probabilities of the completion tokens, with gradients where they are on.

        Args:
            model: the model as it is trained, wrapped or not.
            input_ids_BS: prompts, padded on the left, and completions, padded on the right: `[B, L + T]`.
            mask_BS: 1 for tokens, 0 for padding.
            length_T: T, the number of completion columns.
            rows_at_once: rows of one forward pass; None takes all. Every process must give the same number.
            whole: rows of a group; `rows_at_once` is raised to a multiple of it, so that groups stay whole.
            compute_entropy: whether to return the entropies of the next-token distributions too.
            more: what else the plain path takes; anything that is set there is left to it.

        Returns:
            Log-probabilities and entropies (or None), both `[B, T]`, in nats, zero at padding, and None, for the plain
            path has a third value; or None if this is off, or the rows or the model do not lend themselves to it,
            which is said once.
        """
        if not self._on or self._declines(_more_than_tokens(more) or self._reason(model)):
            return None
        rows = -(-rows_at_once // whole) * whole if rows_at_once else len(input_ids_BS)
        parts = [slice(start, start + rows) for start in range(0, len(input_ids_BS), rows)]
        packs = [pack(input_ids_BS[part], mask_BS[part], length_T) for part in parts]
        outputs = []
        for part, packed in zip(parts, packs, strict=True):
            if packed is None:
                self._declines("a row has no prompt, or its padding is not where it is expected")
                return None
            ids = input_ids_BS[part]
            states = {} if self._thinks is None else {STATES: self._before(ids, mask_BS[part], length_T, packed)}
            outputs.append(self._forward(model, ids, packed, length_T, compute_entropy, states))
            if self._declines(self._reason(model)):
                return None
        logps_BT, *entropies_BT = (torch.cat(pieces) for pieces in zip(*outputs, strict=True))
        return logps_BT, entropies_BT[0] if compute_entropy else None, None

    def _before(
        self, input_ids_BS: torch.Tensor, mask_BS: torch.Tensor, length_T: int, packed: PackedRows
    ) -> torch.Tensor:
        """Whether each completion token is drawn inside of thinking, `[1, S]`."""
        assert self._thinks is not None
        after_BS = self._thinks(input_ids_BS, mask_BS)
        return after_BS[:, -length_T - 1 : -1].flatten()[packed.target_index][None]

    def applies(self, model: torch.nn.Module) -> bool:
        """Whether rows of this model will be packed, as far as is known before the next forward pass."""
        return self._on and self._reason(model) is None

    def _declines(self, reason: str | None) -> bool:
        """Whether there is a reason for the plain path. It is said once."""
        if reason is not None and reason not in self._said:
            self._said.add(reason)
            logger.warning("speed.shared_scoring does not apply: %s. Prompts are computed for each completion.", reason)
        return reason is not None

    def _reason(self, model: torch.nn.Module) -> str | None:
        unwrapped = _causal_model(model)
        if isinstance(unwrapped, str):
            return unwrapped
        if unwrapped not in self._reasons:
            self._reasons[unwrapped] = reason_against(unwrapped)
            if self._reasons[unwrapped] is None:
                share_prompts(unwrapped)
                write_out_norms(unwrapped)
        return self._reasons[unwrapped]

    def _forward(
        self,
        model: torch.nn.Module,
        input_ids_BS: torch.Tensor,
        packed: PackedRows,
        length_T: int,
        compute_entropy: bool,
        more: dict[str, torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        unwrapped = _causal_model(model)
        assert not isinstance(unwrapped, str)
        targets_S = input_ids_BS[:, -length_T:].flatten()[packed.target_index]
        with _states(unwrapped.base_model, packed.predictor):
            output = model(
                input_ids=input_ids_BS.flatten()[packed.token_index][None],
                attention_mask=input_ids_BS.new_ones(NO_MASK, dtype=torch.bool),
                position_ids=packed.position[None],
                shift_labels=targets_S[None],
                fused_lm_head=True,
                **{LAYOUT: packed.layout},
                **more,
            )
        layers = unwrapped.config.num_hidden_layers
        if packed.layout.problem is not None:
            self._reasons[unwrapped] = packed.layout.problem
        elif packed.layout.calls != layers:
            self._reasons[unwrapped] = f"{packed.layout.calls} of the model's {layers} layers follow the shared layout"
        shape = (len(input_ids_BS), length_T)
        values = (output.log_probs, output.entropy) if compute_entropy else (output.log_probs,)
        return tuple(_scatter(value[0], packed.target_index, shape) for value in values)


def _more_than_tokens(more: dict[str, Any]) -> str | None:
    asked = sorted(name for name, value in more.items() if value is not None and value is not False)
    return f"the model takes {', '.join(asked)}" if asked else None


def _scatter(values_S: torch.Tensor, index_S: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    return values_S.new_zeros(shape).flatten().index_put((index_S,), values_S).view(shape)


@contextmanager
def _states(backbone: torch.nn.Module, index_S: torch.Tensor) -> Iterator[None]:
    """Within, only the hidden states of these packed tokens leave the backbone."""

    def choose(_: torch.nn.Module, __: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, index_S]
        return output

    handle = backbone.register_forward_hook(choose)
    try:
        yield
    finally:
        handle.remove()


def _causal_model(model: Any) -> PreTrainedModel | str:
    """The language model within what wraps it, or why it cannot be told apart from that."""
    if isinstance(model, torch.nn.DataParallel):
        return "DataParallel would cut the packed row"
    if is_compiled_module(model):
        return "torch.compile would compile every packed length anew"
    model = extract_model_from_parallel(model)
    if hasattr(model, "get_base_model"):
        if any(config.is_prompt_learning for config in model.peft_config.values()):
            return "the adapter puts tokens of its own before the prompt"
        model = model.get_base_model()
    return model if isinstance(model, PreTrainedModel) else f"{type(model).__name__} is not a transformers model"
