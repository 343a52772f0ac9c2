"""Log-probs of completions, with a group's prompt computed once; how they were sampled; and the sampler's gap.

The rows of a batch are packed into one sequence of real tokens (see `covey.model.group_attention`) and go through the
model in one forward pass, so whatever wraps the model (DDP, FSDP, adapters, autocast, gradient checkpointing) works as
usual. Only the hidden states that predict a completion token reach the head, which is that of the plain path: it works
in tiles and never materialises `[B, T, V]`.

The sampler and the scorer must normalise over the same tokens, or their ratio at unchanged weights is not 1 but the
probability that top-k, top-p and min-p have left. So the sampler ships the tokens that could be sampled in each place,
and the batch holds them beside TRL's `sampling_per_token_logps`. All here knows tensors, not TRL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from accelerate.utils import extract_model_from_parallel, is_compiled_module
from torch import Tensor
from transformers import PreTrainedModel

from covey.errors import ConfigError
from covey.log_once import log_once
from covey.model.device import on_device, use_own_norms
from covey.model.group_attention import LAYOUT, NO_MASK, GroupLayout, PackedGroup, share_prompts, unsupported_reason
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.vocabulary import attach, vocabulary_of
from covey.rollout.thinking import masked_generation
from covey.runlog import names

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackedRows:
    """B rows of L prompt and T completion tokens packed into N tokens, M of which are completion tokens.

    Consecutive rows with the same prompt share it.
    """

    layout: GroupLayout
    token_index: Tensor
    """Index of each packed token in the flattened `[B, L + T]`: `[N]`."""
    position: Tensor
    """Position of each packed token within its row, padding not counted: `[N]`."""
    predictor: Tensor
    """Which packed token predicts each completion token, the one before it or the prompt's last one: `[M]`."""
    target_index: Tensor
    """Index of each completion token in the flattened `[B, T]`: `[M]`."""


def pack(input_ids_BS: Tensor, mask_BS: Tensor, length_T: int) -> PackedRows | None:
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
        input_ids_BS: Tensor,
        mask_BS: Tensor,
        length_T: int,
        *,
        rows_per_forward: int | None = None,
        group_size: int = 1,
        compute_entropy: bool = False,
        restricted: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        **more: Any,
    ) -> tuple[Tensor, Tensor | None, None] | None:
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
        input_ids_BS: Tensor,
        packed: PackedRows,
        length_T: int,
        compute_entropy: bool,
    ) -> tuple[Tensor, ...]:
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
        index = (packed.target_index,)
        return tuple(value.new_zeros(shape).flatten().index_put(index, value[0]).view(shape) for value in values)


@contextmanager
def _states(backbone: torch.nn.Module, index_M: Tensor) -> Iterator[None]:
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


SUPPORT = "support"
"""Key of a batch: the tokens that could be sampled in each place, int32 `[B, T, C]`, -1 where there are fewer than C.
A place with none, as the tokens of tool results, could have had any token. Absent where nothing was cut off."""
PENALTY = "repetition_penalty"
"""Key of a batch: the repetition penalty that its completions were sampled with, a scalar. Absent where that is 1."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """How the completions of the newest generation of a process were sampled."""

    supports: Sequence[Tensor | None] = ()
    """`Completion.support` of each row; none at all where no row has one."""
    repetition_penalty: float = 1.0
    """1 where the sampler is not known to apply it as Covey does."""
    cut_off: bool = False
    """Whether tokens were cut off that `supports` does not tell."""
    staleness: Sequence[Sequence[int]] | None = None
    """For each row and token, how many generation rounds its weights were behind those that score it; None for 0."""

    def entries(self, shape_BT: tuple[int, int], device: torch.device) -> dict[str, Tensor]:
        """What a batch of these rows holds about it.

        Args:
            shape_BT: B and T, the padded length of completions.
            device: where the tensors are to be.
        """
        found = {}
        if any(one is not None for one in self.supports):
            found[SUPPORT] = padded(self.supports, shape_BT[1]).to(device)
        if self.repetition_penalty != 1.0:
            found[PENALTY] = torch.tensor(self.repetition_penalty, device=device)
        return found


def padded(supports: Sequence[Tensor | None], length_T: int) -> Tensor:
    """Supports of rows `[T', C']` with T' up to T as one tensor `[B, T, C]`; see `SUPPORT`."""
    width = max(0 if one is None else one.shape[1] for one in supports)
    found_BTC = torch.full((len(supports), length_T, width), -1, dtype=torch.int32)
    for row, one in enumerate(supports):
        if one is not None:
            found_BTC[row, : len(one), : one.shape[1]] = one
    return found_BTC


def joined(turns: Sequence[Tensor], mask: Sequence[int]) -> Tensor | None:
    """The support of an episode, `[T, C]`, from those of its turns; None if no turn has one.

    Args:
        turns: of each turn, `[T', C']`, in order; without columns for a turn that has none.
        mask: 1 for each token that was sampled in a turn, 0 for others, whose places have no support.
    """
    width = max((turn.shape[1] for turn in turns), default=0)
    if not width:
        return None
    found_TC = torch.full((len(mask), width), -1, dtype=torch.int32)
    widened = [F.pad(turn, (0, width - turn.shape[1]), value=-1) for turn in turns]
    found_TC[torch.tensor(mask, dtype=torch.bool)] = torch.cat(widened)
    return found_TC


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """B rows of L prompt and T completion tokens to be scored, and how these were sampled."""

    ids: Tensor
    """Prompts, padded on the left, and completions, padded on the right: `[B, L + T]`."""
    mask: Tensor
    """1 for tokens, 0 for padding."""
    length: int
    """T, the number of completion columns."""
    support: Tensor | None = None
    """See `SUPPORT`; None for the full vocabulary."""
    penalty: float = 1.0
    """Repetition penalty of the sampler."""

    @classmethod
    def of(cls, ids_BS: Tensor, mask_BS: Tensor, length_T: int, batch: Mapping[str, Any]) -> Self:
        """With what the batch of these rows says."""
        penalty = batch.get(PENALTY)
        return cls(ids_BS, mask_BS, length_T, batch.get(SUPPORT), 1.0 if penalty is None else float(penalty))

    def __getitem__(self, part: slice) -> Self:
        support_BTC = None if self.support is None else self.support[part]
        return type(self)(self.ids[part], self.mask[part], self.length, support_BTC, self.penalty)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def scored(self) -> tuple[Tensor, Tensor]:
        """Row and column, among S, of each completion token that is not padding: `[M]` each, row after row."""
        row_M, column_M = self.mask[:, -self.length :].nonzero(as_tuple=True)
        return row_M, column_M + self.ids.shape[1] - self.length

    def first_columns(self, vocabulary_V: int) -> Tensor:
        """The first column of each row that holds each token, S where none does; padding does not count: `[B, V]`."""
        rows, width = self.ids.shape
        column_BS = torch.arange(width, dtype=torch.int32, device=self.ids.device).expand(rows, -1)
        column_BS = column_BS.masked_fill(self.mask == 0, width)
        first_BV = torch.full((rows, vocabulary_V), width, dtype=torch.int32, device=self.ids.device)
        return first_BV.scatter_reduce_(1, self.ids, column_BS, "amin")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """The completions of a generation on one process, scored: `[B, T]` each."""

    counted: Tensor
    """Whether the loss counts a token, which is then one that was sampled."""
    sampler: Tensor
    """Log-probs under the sampler; NaN where it could not compute one."""
    trainer: Tensor
    """Under the policy, normalised as the loss does."""
    full: Tensor | None = None
    """The same over all tokens, where that is not what the loss does."""
    cut_off: bool = False
    """Whether the sampler cut tokens off and the loss does not know which."""
    stale: Tensor | None = None
    """Whether a token was sampled with older weights; None for none."""


@dataclass(frozen=True, slots=True)
class Correction:
    """How TRL bounds the ratio of the policy's probability to the sampler's."""

    by_sequence: bool
    """Whether the ratios of a completion's tokens are multiplied."""
    low: float | None
    high: float | None


def measure_gap(
    sample: ScoredSample, correction: Correction, *, last_number_type: float, gather: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """The metrics of the gap, over all processes, by the names in `covey.runlog.names`.

    Each part is a mean over tokens, in nats:

    - `number_type`: absolute difference at equal weights and support, of the tokens that have such; else the last one.
    - `truncation`: -log of the probability that the tokens that could be sampled have together under the policy. This
      is what the ratio would be off with log-probs over all tokens; it is no part of the gap with one support.
      Where these tokens are not known, it is the mean of the signed difference, which number types do not move, and
      `number_type` is what is left.
    - `staleness`: what the stale tokens' difference exceeds `number_type` by, over all tokens.

    Args:
        sample: of this process.
        correction: whose bounds `sampling/ratio/outside` counts by, in tokens or completions.
        last_number_type: the newest value of that part, for a generation with stale tokens only.
        gather: concatenates a tensor over all processes.

    Returns:
        None of the metrics where no process has a token that counts.
    """
    known_BT = sample.counted.bool() & ~sample.sampler.isnan()
    stale_BT = torch.zeros_like(known_BT) if sample.stale is None else sample.stale.to(known_BT.device) & known_BT
    sampler_BT = sample.sampler.float().nan_to_num()
    log_ratio_BT = torch.where(known_BT, sample.trainer.float() - sampler_BT, 0.0)
    apart_BT, cut_BT = log_ratio_BT.abs(), torch.zeros_like(log_ratio_BT)
    if sample.cut_off:
        cut_BT, apart_BT = -log_ratio_BT, apart_BT + log_ratio_BT
    elif sample.full is not None:
        cut_BT = torch.where(known_BT, (sample.trainer - sample.full).float(), 0.0)
    judged = log_ratio_BT.sum(1)[known_BT.any(1)] if correction.by_sequence else log_ratio_BT[known_BT]
    low = -torch.inf if correction.low is None else correction.low
    high = torch.inf if correction.high is None else correction.high
    outside = (judged.exp() < low) | (judged.exp() > high)
    ratios = log_ratio_BT[known_BT].exp()
    ends = torch.stack([ratios.min(), -ratios.max()]) if len(ratios) else ratios.new_full((2,), torch.inf)
    sums = torch.stack(
        [
            *(known_BT.sum(), log_ratio_BT.abs().sum(), cut_BT.sum(), ratios.sum(), outside.sum()),
            *(ratios.new_tensor(len(judged)), stale_BT.sum(), apart_BT[stale_BT].sum(), apart_BT[~stale_BT].sum()),
        ]
    )
    together = gather(torch.cat([sums, ends])[None])
    count, gap, cut, ratio, out, all_judged, stale, apart_stale, apart_fresh = together[:, :-2].sum(0).tolist()
    lowest, highest = together[:, -2:].amin(0).tolist()
    if not count:
        return {}
    number_type = apart_fresh / (count - stale) if count > stale else last_number_type
    older = max(apart_stale / stale - number_type, 0.0) * stale / count if stale else 0.0
    values = (gap / count, number_type, cut / count, older)
    return dict(zip((names.SAMPLING_GAP, *names.SAMPLING_GAP_PARTS), values, strict=True)) | {
        f"{names.SAMPLING_RATIO}min": lowest,
        f"{names.SAMPLING_RATIO}mean": ratio / count,
        f"{names.SAMPLING_RATIO}max": -highest,
        f"{names.SAMPLING_RATIO}outside": out / all_judged,
    }


class ReasoningSupport:
    """The reasoning vocabulary in training: in sampling, scoring, checkpoints and metrics. Does nothing for a model
    without one.

    Args:
        vocabulary: None takes the model's, if it has one.
        model: the policy, adapters or not.
        reference: the reference model, if it is a separate one.
        args: the trainer's.

    Raises:
        ConfigError: the settings cannot be combined with a reasoning vocabulary.
        ModelError: the vocabulary does not fit the weights.
    """

    def __init__(self, vocabulary: ReasoningVocabulary | None, model: Any, reference: Any, args: Any) -> None:
        self.vocabulary = vocabulary or vocabulary_of(model)
        self._model, self._temperature = model, float(args.temperature)
        if self.vocabulary is None:
            return
        if args.use_transformers_continuous_batching:
            raise ConfigError(
                "use_transformers_continuous_batching=true has no logits processors, so it cannot restrict reasoning "
                "tokens to thinking. Set training.use_transformers_continuous_batching=false."
            )
        for one in (model, reference):
            if one is not None:
                attach(one, self.vocabulary)
        if hasattr(model, "peft_config") and not _rows_are_trained(model):
            logger.warning(
                "The adapters do not train the embeddings of the reasoning tokens, so these stay copies. "
                "Pass LoraConfig trainable_token_indices (covey.model.adapters.trainable_rows) to train their rows too."
            )

    def generating(self) -> AbstractContextManager[None]:
        """Context manager: the policy's own `generate` uses the vocabulary's mask."""
        return masked_generation(self._model, self.vocabulary, self._temperature)

    def save(self, folder: str | Path, *, writes: bool) -> None:
        """Write the map next to saved weights, if this process writes."""
        if self.vocabulary is not None and writes:
            self.vocabulary.save(folder)

    def measure(
        self, batch: Mapping[str, Any], metrics: Mapping[str, dict[str, list[float]]], reduce: Callable[..., Any]
    ) -> None:
        """Log the share of reasoning tokens in thinking, and of thinking in completions, over all processes.

        Args:
            batch: prompts and completions by TRL's names.
            metrics: the trainer's by name, to append to, under `train` or `eval`.
            reduce: sums tensors over processes.
        """
        if self.vocabulary is None:
            return
        ids_BS = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask_BS = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        thinks_BT = self.vocabulary.thinks(ids_BS, mask_BS, batch["completion_ids"].shape[1])
        reasoning_BT = (batch["completion_ids"] >= self.vocabulary.map.base_vocab_size) & thinks_BT
        counts = torch.stack([reasoning_BT.sum(), thinks_BT.sum(), batch["completion_mask"].sum()]).float()
        reasoning, thought, written = reduce(counts, reduction="sum").tolist()
        found = metrics["train" if self._model.training else "eval"]
        found[names.REASONING_SHARE.removeprefix("train/")].append(reasoning / max(thought, 1))
        found[names.THINKING_SHARE.removeprefix("train/")].append(thought / max(written, 1))


def _rows_are_trained(model: Any) -> bool:
    head = model.get_base_model().get_input_embeddings()
    return any(parameter.requires_grad for parameter in head.parameters())
