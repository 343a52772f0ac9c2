"""Log-probs of completions, with the prompt of a group computed once and without padding.

The rows of a batch are packed into one sequence of real tokens (see `covey.model.group_attention`) and go through the
model in one forward pass, so whatever wraps the model (DDP, FSDP, adapters, autocast, gradient checkpointing) works as
usual. Only the hidden states that predict a completion token reach the head, which is that of the plain path: it works
in tiles and never materialises `[B, T, V]`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from accelerate.utils import extract_model_from_parallel, is_compiled_module
from transformers import PreTrainedModel

from covey.log_once import log_once
from covey.model.device import on_device
from covey.model.group_attention import LAYOUT, NO_MASK, GroupLayout, PackedGroup, share_prompts, unsupported_reason
from covey.model.norms import use_own_norms

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackedRows:
    """B rows of L prompt and T completion tokens packed into N tokens, M of which are completion tokens.

    Consecutive rows with the same prompt share it.
    """

    layout: GroupLayout
    token_index: torch.Tensor
    """Index of each packed token in the flattened `[B, L + T]`: `[N]`."""
    position: torch.Tensor
    """Position of each packed token within its row, padding not counted: `[N]`."""
    predictor: torch.Tensor
    """Which packed token predicts each completion token, the one before it or the prompt's last one: `[M]`."""
    target_index: torch.Tensor
    """Index of each completion token in the flattened `[B, T]`: `[M]`."""


def pack(input_ids_BS: torch.Tensor, mask_BS: torch.Tensor, length_T: int) -> PackedRows | None:
    """Pack a batch so that equal prompts of consecutive rows occur once.

    Args:
        input_ids_BS: prompts, padded on the left, and completions, padded on the right: `[B, L + T]`.
        mask_BS: 1 for tokens, 0 for padding.
        length_T: T, the number of completion columns.

    Returns:
        The packed rows; None if a row has no prompt, or its padding is elsewhere.
    """
    ids_BS, mask_BS = torch.stack([input_ids_BS, mask_BS.to(input_ids_BS)]).cpu()  # one wait for the device
    mask_BS = mask_BS.bool()
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
    indices = (
        kept_BS.flatten().nonzero().squeeze(1),
        (mask_BS.cumsum(1) - 1)[kept_BS],
        predictor_BT[completion_mask],
        completion_mask.flatten().nonzero().squeeze(1),
    )
    together = on_device(torch.cat(indices), input_ids_BS.device)
    return PackedRows(
        _layout(new_B.tolist(), prompt_mask.sum(1).tolist(), completion_mask.sum(1).tolist()),
        *torch.split(together, [len(index) for index in indices]),
    )


def _layout(new: list[bool], prompts: list[int], completions: list[int]) -> GroupLayout:
    starts = [row for row, is_new in enumerate(new) if is_new]
    groups = (
        PackedGroup(prompts[start], tuple(size for size in completions[start:end] if size))
        for start, end in zip(starts, [*starts[1:], len(new)], strict=True)
    )
    return GroupLayout(tuple(groups))


class SharedScoring:
    """Scores rows with shared prompts, where the model supports it.

    The model's forward must take `shift_labels` and `fused_lm_head=True`, and then return `log_probs` and `entropy` for
    each hidden state that leaves the backbone.
    """

    def __init__(self, *, on: bool = True) -> None:
        self._on = on
        self._reasons: WeakKeyDictionary[torch.nn.Module, str | None] = WeakKeyDictionary()

    def score(
        self,
        model: torch.nn.Module,
        input_ids_BS: torch.Tensor,
        mask_BS: torch.Tensor,
        length_T: int,
        *,
        rows_per_forward: int | None = None,
        group_size: int = 1,
        compute_entropy: bool = False,
        restricted: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        **more: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None] | None:
        """Log-probs of the completion tokens, with gradients if they are enabled.

        Args:
            model: as it is trained, wrapped or not.
            input_ids_BS: prompts, padded on the left, and completions, padded on the right: `[B, L + T]`.
            mask_BS: 1 for tokens, 0 for padding.
            length_T: T, the number of completion columns.
            rows_per_forward: None takes all rows. Every process must pass the same number.
            group_size: rows of a group; `rows_per_forward` is rounded up to a multiple of it.
            compute_entropy: whether to return the entropies of the next-token distributions too.
            restricted: context manager around the forwards, of the rows of each one: how the head normalises.
            more: further arguments of the plain path, which has to be used if any of them is set.

        Returns:
            Log-probs and entropies (or None), both `[B, T]`, in nats, zero at padding, and None for the third value of
            the plain path; or None if this is off, or the rows or the model are not supported, which is logged once.
        """
        given = ", ".join(sorted(name for name, value in more.items() if value is not None and value is not False))
        taken = f"the model takes {given}" if given else None
        if not self._on or self._falls_back(taken or self._unsupported_reason(model)):
            return None
        rows = -(-rows_per_forward // group_size) * group_size if rows_per_forward else len(input_ids_BS)
        parts = [slice(start, start + rows) for start in range(0, len(input_ids_BS), rows)]
        packs = [pack(input_ids_BS[part], mask_BS[part], length_T) for part in parts]
        outputs = []
        with restricted(rows):
            for part, packed in zip(parts, packs, strict=True):
                if packed is None:
                    self._falls_back("a row has no prompt, or its padding is not where it is expected")
                    return None
                outputs.append(self._forward(model, input_ids_BS[part], packed, length_T, compute_entropy))
                if self._falls_back(self._unsupported_reason(model)):
                    return None
        logps_BT, *entropies_BT = (torch.cat(parts) for parts in zip(*outputs, strict=True))
        return logps_BT, entropies_BT[0] if compute_entropy else None, None

    def supports(self, model: torch.nn.Module) -> bool:
        """Whether rows of this model are packed, as far as known before the next forward pass."""
        return self._on and self._unsupported_reason(model) is None

    def _falls_back(self, reason: str | None) -> bool:
        """Whether there is a reason for the plain path, which is logged once."""
        if reason is not None:
            text = "speed.shared_scoring does not apply: %s. Prompts are computed for each completion."
            log_once(logger, text, reason, shown=False)
        return reason is not None

    def _unsupported_reason(self, model: torch.nn.Module) -> str | None:
        unwrapped = _causal_model(model)
        if isinstance(unwrapped, str):
            return unwrapped
        if unwrapped not in self._reasons:
            self._reasons[unwrapped] = unsupported_reason(unwrapped)
            if self._reasons[unwrapped] is None:
                share_prompts(unwrapped)
                use_own_norms(unwrapped)
        return self._reasons[unwrapped]

    def _forward(
        self,
        model: torch.nn.Module,
        input_ids_BS: torch.Tensor,
        packed: PackedRows,
        length_T: int,
        compute_entropy: bool,
    ) -> tuple[torch.Tensor, ...]:
        unwrapped = _causal_model(model)
        assert not isinstance(unwrapped, str)
        targets_M = input_ids_BS[:, -length_T:].flatten()[packed.target_index]
        with _states(unwrapped.base_model, packed.predictor):
            output = model(
                input_ids=input_ids_BS.flatten()[packed.token_index][None],
                attention_mask=input_ids_BS.new_ones(NO_MASK, dtype=torch.bool),
                position_ids=packed.position[None],
                shift_labels=targets_M[None],
                fused_lm_head=True,
                **{LAYOUT: packed.layout},
            )
        layers = unwrapped.config.num_hidden_layers
        if packed.layout.problem is not None:
            self._reasons[unwrapped] = packed.layout.problem
        elif packed.layout.calls != layers:
            self._reasons[unwrapped] = f"only {packed.layout.calls} of the model's {layers} layers use packed rows"
        shape = (len(input_ids_BS), length_T)
        values = (output.log_probs, output.entropy) if compute_entropy else (output.log_probs,)
        return tuple(_scatter(value[0], packed.target_index, shape) for value in values)


def _scatter(values_M: torch.Tensor, index_M: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    return values_M.new_zeros(shape).flatten().index_put((index_M,), values_M).view(shape)


@contextmanager
def _states(backbone: torch.nn.Module, index_M: torch.Tensor) -> Iterator[None]:
    """Context manager: the backbone returns the hidden states of these packed tokens only."""

    def choose(_: torch.nn.Module, __: Any, output: Any) -> Any:
        # Not `states[:, index_M]`: a prompt's last state predicts the first token of every completion of its group, and
        # on a CPU the gradient of such an index sums them in an order that depends on threads.
        output.last_hidden_state = F.embedding(index_M, output.last_hidden_state[0])[None]
        return output

    handle = backbone.register_forward_hook(choose)
    try:
        yield
    finally:
        handle.remove()


def _causal_model(model: Any) -> PreTrainedModel | str:
    """The language model without its wrappers, or why it cannot be unwrapped."""
    if isinstance(model, torch.nn.DataParallel):
        return "DataParallel would split the packed row"
    if is_compiled_module(model):
        return "torch.compile would recompile for every packed length"
    model = extract_model_from_parallel(model)
    if hasattr(model, "get_base_model"):
        if any(config.is_prompt_learning for config in model.peft_config.values()):
            return "the adapter puts tokens of its own before the prompt"
        model = model.get_base_model()
    return model if isinstance(model, PreTrainedModel) else f"{type(model).__name__} is not a transformers model"
