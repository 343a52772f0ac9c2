"""Scoring over the tokens that could be sampled: a support, a repetition penalty, a reasoning vocabulary.

TRL's fused head computes log-probs in tiles from hidden states and the head's weight, over the full vocabulary and with
one bias for all positions. Within a scoring pass another function stands in for it, which knows how the rows were
sampled. It follows the sampler: penalty on the model's logits, the vocabulary's bias, temperature, restriction, and
softmax.

- Positions with a support need the logits of its tokens only: the head has the rows of all supports of the pass.
- Others have the full vocabulary, or, under a reasoning vocabulary, the ordinary rows outside of thinking (those before
  the copies) and all rows inside. TRL's own function computes them, so its tiles, kernels and scale apply.
- With a repetition penalty, or softcapped logits and a reasoning vocabulary, no bias of TRL's function fits: the full
  vocabulary is then scored in plain PyTorch, for some positions at a time.

- On a CPU in float32, `LogProbs` computes what TRL's function does with fewer passes over the logits.

Knows the calling convention of the head's function, `trl.trainer.utils._ChunkedLogProbFunction`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
import trl.trainer.utils
from torch.utils.checkpoint import checkpoint

from covey.errors import TrainingError
from covey.log_once import log_once
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.vocabulary import INSIDE, OUTSIDE
from covey.training.replaced import replaced
from covey.training.scoring import ScoredRows

logger = logging.getLogger(__name__)

_TRL: Any = trl.trainer.utils
"""The module in which the fused head looks up its function."""

NEVER = -3e4
"""A logit, or the bias, of a token that cannot be sampled: finite in every dtype, and zero as a probability."""

LOGITS = 2**24
"""Most logits that are computed at a time in plain PyTorch."""

KEPT = 2**25
"""Most logits whose exponentials `LogProbs` keeps for the backward pass, which otherwise computes them again."""

_CACHED = 2**20
"""Logits that several operations in a row find in a processor's cache."""

Scores = tuple[torch.Tensor | None, ...]


class RestrictedHead:
    """Makes TRL's fused heads score rows as they were sampled.

    Args:
        vocabulary: the model's reasoning vocabulary, if it has one.
    """

    def __init__(self, vocabulary: ReasoningVocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._full: list[torch.Tensor] | None = None

    @contextmanager
    def over(self, rows: ScoredRows, rows_per_forward: int, *, exact: bool = False) -> Iterator[None]:
        """Context manager: forwards with `fused_lm_head=True` score these rows, so many at a time, in order.

        Args:
            rows: all that are scored meanwhile.
            rows_per_forward: of each forward but the last.
            exact: whether the numbers are TRL's to the last bit, where nothing restricts the rows.
        """
        head: Any = _TRL._ChunkedLogProbFunction if exact else LogProbs
        if self._vocabulary is not None or rows.support is not None or rows.penalty != 1.0 or self._full is not None:
            head = RestrictedLogProb(head, self._vocabulary, rows, rows_per_forward, self._full)
        with replaced(_TRL, _ChunkedLogProbFunction=head):
            yield

    @contextmanager
    def measuring(self) -> Iterator[list[torch.Tensor]]:
        """Context manager: collects, of each forward, log-probs over all tokens even where there is a support.

        Yields:
            `[M]` of each forward, of the completion tokens that are not padding, without gradients.
        """
        with replaced(self, _full=list[torch.Tensor]()):
            assert self._full is not None
            yield self._full


def give_bias(model: Any) -> None:
    """Give a model's head the attribute `bias`, which peft's wrapper of a head with trainable rows lacks."""
    head = model.get_output_embeddings()
    if not hasattr(head, "bias"):
        original = getattr(head, "original_module", None)
        object.__setattr__(head, "bias", getattr(original, "bias", None))  # not a parameter of the wrapper


@dataclass(frozen=True)
class _Head:
    """The arguments of the head's function that are the same for all positions."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    temperature: float
    chunk_size: int
    softcap: float | None
    scale: float
    outputs: tuple[str, ...]

    def logits(self, hidden_mE: torch.Tensor, weight_UE: torch.Tensor, bias_U: torch.Tensor | None) -> torch.Tensor:
        """The model's own logits of the tokens whose rows these are, float32 `[m, U]`."""
        bias_U = None if bias_U is None else bias_U.to(hidden_mE.dtype)
        logits_mU = F.linear(hidden_mE, weight_UE.to(hidden_mE.dtype), bias_U).float() * self.scale
        return logits_mU if self.softcap is None else torch.tanh(logits_mU / self.softcap) * self.softcap


@dataclass(frozen=True)
class _Positions:
    """M positions whose next token is scored."""

    penalty: float
    seen: torch.Tensor | None
    """With a repetition penalty, the first column of each row with each token; S where there is none: `[B, V]`."""
    hidden: torch.Tensor
    targets: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    """Of the target, among S."""
    thinks: torch.Tensor
    """Whether the target was sampled inside of thinking."""
    support: torch.Tensor | None

    def __getitem__(self, which_m: torch.Tensor | slice) -> _Positions:
        return replace(
            self,
            hidden=self.hidden[which_m],
            targets=self.targets[which_m],
            row=self.row[which_m],
            column=self.column[which_m],
            thinks=self.thinks[which_m],
            support=None if self.support is None else self.support[which_m],
        )

    def __len__(self) -> int:
        return len(self.targets)

    def penalised(self, logits_mC: torch.Tensor, ids_mC: torch.Tensor | None) -> torch.Tensor:
        """The logits of these tokens, None for the full vocabulary, after the repetition penalty."""
        if self.seen is None:
            return logits_mC
        first_mC = self.seen[self.row] if ids_mC is None else self.seen[self.row[:, None], ids_mC]
        changed_mC = torch.where(logits_mC < 0, logits_mC * self.penalty, logits_mC / self.penalty)
        return torch.where(first_mC < self.column[:, None], changed_mC, logits_mC)


class LogProbs(_TRL._ChunkedLogProbFunction):
    """TRL's function with fewer passes over the logits, for float32 on a CPU; else TRL's own.

    The logits of some positions are in memory at a time, over the full vocabulary, so that every further operation
    works in place on what a cache holds. With `p` the probabilities, `g` the gradient of the log-probs and `d` that of
    the entropies `H`, the gradient of the logits is `g (onehot - p) - d p (log p + H)`. Without `d`, the factors of
    `p` are applied to the hidden states and to the result in place of the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NE: torch.Tensor,
        weight_VE: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: tuple[str, ...],
    ) -> Scores:
        """Log-probs and entropies `[N]`, in nats, and three values that are not computed here."""
        kinds = {(one.device.type, one.dtype) for one in (hidden_NE, weight_VE)}
        plain = kinds == {("cpu", torch.float32)} and not torch.is_autocast_enabled("cpu") and softcap is None
        ctx.own = plain and not hasattr(weight_VE, "ds_status") and {*outputs} <= {"log_probs", "entropy"}
        if not ctx.own:
            if hidden_NE.device.type == "cpu":
                text = "TRL's head computes log-probs: the faster one on a CPU takes float32, and no capped logits."
                log_once(logger, text, shown=False)
            rest = (temperature, chunk_size, softcap, scale, outputs)
            return tuple(super(LogProbs, LogProbs).forward(ctx, hidden_NE, weight_VE, bias_V, targets_N, *rest))
        ctx.set_materialize_grads(False)
        ctx.factor, with_entropy = scale / temperature, "entropy" in outputs
        hidden_NE = hidden_NE if ctx.factor == 1 else hidden_NE * ctx.factor
        bias_V = bias_V if bias_V is None or ctx.factor == 1 else bias_V * ctx.factor
        count, size = len(hidden_NE), len(weight_VE)
        keeps = any(ctx.needs_input_grad[:3]) and count * size <= KEPT
        exps_NV = hidden_NE.new_empty(count, size) if keeps else None
        logps_N, total_N, apart_N, entropy_N = (torch.empty_like(hidden_NE[:, 0]) for _ in range(4))
        for part, found_mV in _logits(hidden_NE, weight_VE, bias_V, exps_NV):
            rows = max(1, _CACHED // size)
            taken = [torch.split(one[part], rows) for one in (targets_N, logps_N, total_N, apart_N, entropy_N)]
            for logits, at, logps, total, apart, entropy in zip(torch.split(found_mV, rows), *taken, strict=True):
                target_m1, top_m1 = logits.gather(1, at[:, None]), logits.amax(1, keepdim=True)
                logits.sub_(top_m1)
                below = logits.clone() if with_entropy else logits
                sum_m = logits.exp_().sum(1)
                if with_entropy:
                    entropy.copy_(sum_m.log() - torch.linalg.vecdot(logits, below) / sum_m)
                total.copy_(top_m1[:, 0] + sum_m.log())
                apart.copy_(1 / sum_m)
                logps.copy_(target_m1[:, 0]).sub_(total)
        ctx.save_for_backward(hidden_NE, weight_VE, bias_V, targets_N, total_N, apart_N, entropy_N, exps_NV)
        return logps_N, entropy_N if with_entropy else None, None, None, None

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradients of hidden states, weight and bias."""
        if not ctx.own:
            return tuple(super(LogProbs, LogProbs).backward(ctx, *grads))
        hidden_NE, weight_VE, bias_V, targets_N, total_N, apart_N, entropy_N, exps_NV = ctx.saved_tensors
        grad_N, of_entropy_N = grads[0] if grads[0] is not None else torch.zeros_like(total_N), grads[1]
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_hidden = F.embedding(targets_N, weight_VE).mul_(grad_N[:, None]) if needs_hidden else None
        of_weight = torch.zeros_like(weight_VE) if needs_weight else None
        of_bias = torch.zeros_like(bias_V) if needs_bias else None
        kept = exps_NV is not None and of_entropy_N is None
        parts = [(slice(0, len(grad_N)), exps_NV)] if kept else _logits(hidden_NE, weight_VE, bias_V)
        for part, found_mV in parts:
            factor_m = -grad_N[part] * apart_N[part] if kept else -grad_N[part]
            if of_entropy_N is not None:
                found_mV.sub_(total_N[part, None])
                factor_mV = (found_mV + entropy_N[part, None]).mul_(of_entropy_N[part, None]).sub_(factor_m[:, None])
                found_mV.exp_().mul_(factor_mV)
                factor_m = torch.full_like(factor_m, -1)
            elif not kept:
                rows = max(1, _CACHED // len(weight_VE))
                for logits, total in zip(torch.split(found_mV, rows), torch.split(total_N[part], rows), strict=True):
                    logits.sub_(total[:, None]).exp_()
            if of_hidden is not None:
                of_hidden[part] += (found_mV @ weight_VE).mul_(factor_m[:, None])
            if of_weight is not None:
                of_weight.addmm_(found_mV.T, hidden_NE[part] * factor_m[:, None])
            if of_bias is not None:
                of_bias.addmv_(found_mV.T, factor_m)
        if of_hidden is not None:
            of_hidden *= ctx.factor
        if of_weight is not None:
            of_weight.index_add_(0, targets_N, hidden_NE * grad_N[:, None])
        if of_bias is not None:
            of_bias = of_bias.index_add_(0, targets_N, grad_N) * ctx.factor
        return of_hidden, of_weight, of_bias, None, None, None, None, None, None


def _logits(
    hidden_NE: torch.Tensor, weight_VE: torch.Tensor, bias_V: torch.Tensor | None, out_NV: torch.Tensor | None = None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """The logits of some positions at a time, each in the memory of the last, or all in `out_NV`."""
    size = max(1, 2 * LOGITS // len(weight_VE) if out_NV is None else len(out_NV))
    for start in range(0, len(hidden_NE), size):
        part_mE = hidden_NE[start : start + size]
        if out_NV is None:
            out_NV = hidden_NE.new_empty(len(part_mE), len(weight_VE))
        logits_mV = torch.mm(part_mE, weight_VE.T, out=out_NV[: len(part_mE)])
        yield slice(start, start + size), logits_mV if bias_V is None else logits_mV.add_(bias_V)


class RestrictedLogProb:
    """Replaces the head's function within a scoring pass.

    Args:
        original: the replaced function.
        vocabulary: the model's reasoning vocabulary, if it has one.
        rows: that are scored, each call of `apply` the next ones.
        rows_per_forward: rows of a call.
        full: collects log-probs over all tokens, see `RestrictedHead.measuring`; None does not compute them.
    """

    def __init__(
        self,
        original: Any,
        vocabulary: ReasoningVocabulary | None,
        rows: ScoredRows,
        rows_per_forward: int,
        full: list[torch.Tensor] | None = None,
    ) -> None:
        self._original, self._vocabulary, self._full = original, vocabulary, full
        starts = range(0, len(rows), rows_per_forward)
        self._parts = iter([rows[start : start + rows_per_forward] for start in starts])

    def apply(
        self,
        hidden_NE: torch.Tensor,
        weight_VE: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: tuple[str, ...],
    ) -> Scores:
        """As the replaced function. Some callers pass every position, some only those of completion tokens."""
        head = _Head(weight_VE, bias_V, temperature, chunk_size, softcap, scale, outputs)
        if self._vocabulary is not None:
            size = int(getattr(weight_VE, "ds_shape", weight_VE.shape)[0])
            self._vocabulary.map.check_rows(size, "the model that is scored")
        rows = next(self._parts)
        row_M, column_M = (index.to(hidden_NE.device) for index in rows.scored)
        if len(hidden_NE) == len(row_M):
            return self._score(self._positions(rows, row_M, column_M, hidden_NE, targets_N, weight_VE), head)
        width = rows.ids.shape[1] - 1
        if len(hidden_NE) != len(rows) * width:
            raise TrainingError(
                f"The model scores {len(hidden_NE)} positions of {len(rows)} rows of {width + 1} tokens at once: the "
                "rows must not be divided among GPUs within one process. Start one process per GPU (covey launch)."
            )
        at_M = row_M * width + column_M - 1
        hidden_ME, targets_M = hidden_NE.index_select(0, at_M), targets_N[at_M]
        found = self._score(self._positions(rows, row_M, column_M, hidden_ME, targets_M, weight_VE), head)
        return tuple(None if one is None else one.new_zeros(len(hidden_NE)).index_put((at_M,), one) for one in found)

    def _positions(
        self,
        rows: ScoredRows,
        row_M: torch.Tensor,
        column_M: torch.Tensor,
        hidden_ME: torch.Tensor,
        targets_M: torch.Tensor,
        weight_VE: torch.Tensor,
    ) -> _Positions:
        device, support_MC, seen_BV = hidden_ME.device, None, None
        thinks_M = torch.zeros_like(row_M, dtype=torch.bool)
        if self._vocabulary is not None:
            inside_BS = self._vocabulary.inside(self._vocabulary.states(rows.ids, rows.mask))
            thinks_M = inside_BS.to(device)[row_M, column_M - 1]
        if rows.support is not None:
            support_MC = rows.support.to(device)[row_M, column_M - (rows.ids.shape[1] - rows.length)]
        if rows.penalty != 1.0:
            seen_BV = rows.first_columns(len(weight_VE)).to(device)
        return _Positions(rows.penalty, seen_BV, hidden_ME, targets_M, row_M, column_M, thinks_M, support_MC)

    def _score(self, positions: _Positions, head: _Head) -> Scores:
        if self._full is not None:
            with torch.no_grad():
                full_M = self._over_vocabulary(positions, head)[0]
            assert full_M is not None
            self._full.append(full_M)
        if positions.support is None:
            return self._over_vocabulary(positions, head)
        has_M = (positions.support >= 0).any(1)
        return _either(positions, has_M, head, self._over_support, self._over_vocabulary)

    def _over_support(self, positions: _Positions, head: _Head) -> Scores:
        reason = "the sampler's support, which TRL's fused head cannot be restricted to"
        log_once(
            logger,
            "Log-probs are computed in plain PyTorch over the kept tokens alone: they have %s.",
            reason,
            shown=False,
        )
        assert positions.support is not None
        targets_M1 = positions.targets[:, None].long()
        absent_MC = positions.support < 0
        support_MC = torch.where(absent_MC, targets_M1, positions.support.long())
        ids_MC = torch.cat([targets_M1, support_MC], 1)
        used_V = torch.zeros(len(head.weight), dtype=torch.bool, device=ids_MC.device)
        used_V[ids_MC.flatten()] = True
        taken_U = used_V.nonzero().squeeze(1)
        columns_MC = (used_V.cumsum(0) - 1)[ids_MC]
        bias_U = None if head.bias is None else head.bias.index_select(0, taken_U)
        table_2V = self._table(head)

        def scores(part: slice, weight_UE: torch.Tensor, hidden_mE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            here, ids_mC = positions[part], ids_MC[part]
            logits_mC = head.logits(hidden_mE, weight_UE, bias_U).gather(1, columns_MC[part])
            logits_mC = here.penalised(logits_mC, ids_mC)
            if table_2V is not None:
                logits_mC = logits_mC + table_2V[here.thinks.long()[:, None], ids_mC]
            logits_mC = logits_mC / head.temperature
            kept_mC = logits_mC[:, 1:].masked_fill(absent_MC[part], torch.finfo(torch.float32).min)
            total_m1 = kept_mC.logsumexp(1, keepdim=True)
            logps_mC = kept_mC - total_m1
            return (logits_mC[:, :1] - total_m1).squeeze(1), _entropy(logps_mC)

        # A copy of the rows: under DeepSpeed the gathered weight is gone in the backward pass.
        return _in_parts(scores, positions, head.weight.index_select(0, taken_U), "entropy" in head.outputs)

    def _over_vocabulary(self, positions: _Positions, head: _Head) -> Scores:
        if positions.seen is not None or (head.softcap is not None and self._vocabulary is not None):
            return self._in_pytorch(positions, head)
        if self._vocabulary is None:
            return self._fused(positions, head, slice(None), head.bias)
        return _either(positions, positions.thinks, head, self._inside, self._outside)

    def _outside(self, positions: _Positions, head: _Head) -> Scores:
        assert self._vocabulary is not None
        if hasattr(head.weight, "ds_status"):  # DeepSpeed gathers whole parameters only: the bias masks the copies
            return self._fused(positions, head, slice(None), self._added_bias(head, OUTSIDE))
        ordinary = slice(self._vocabulary.map.base_vocab_size)
        return self._fused(positions, head, ordinary, None if head.bias is None else head.bias[ordinary])

    def _inside(self, positions: _Positions, head: _Head) -> Scores:
        return self._fused(positions, head, slice(None), self._added_bias(head, INSIDE))

    def _fused(self, positions: _Positions, head: _Head, taken: slice, bias: torch.Tensor | None) -> Scores:
        rest = (head.temperature, head.chunk_size, head.softcap, head.scale, head.outputs)
        weight = head.weight if taken == slice(None) else head.weight[taken]
        return tuple(self._original.apply(positions.hidden, weight, bias, positions.targets, *rest))

    def _added_bias(self, head: _Head, state: int) -> torch.Tensor:
        """The head's bias and that of this state, which is added before the scale, `[V]`."""
        table_2V = self._table(head)
        assert table_2V is not None
        dtype = head.weight.dtype if head.weight.dtype.is_floating_point else torch.float32
        added_V = (table_2V[state] / head.scale).clamp(min=NEVER).to(dtype)
        return added_V if head.bias is None else head.bias + added_V

    def _table(self, head: _Head) -> torch.Tensor | None:
        """What the vocabulary adds to logits, by state, `[2, V]`."""
        if self._vocabulary is None:
            return None
        return self._vocabulary.bias_on(head.weight.device, head.temperature).clamp(min=NEVER)

    def _in_pytorch(self, positions: _Positions, head: _Head) -> Scores:
        reason = "they have a repetition penalty" if positions.seen is not None else "the model caps its logits"
        log_once(
            logger, "Log-probs are computed in plain PyTorch instead of TRL's fused head: %s.", reason, shown=False
        )
        table_2V = self._table(head)
        # Under DeepSpeed the gathered weight is gone in the backward pass, which computes the logits again.
        weight_VE, bias_V = (
            one.clone() if one is not None and hasattr(one, "ds_status") else one for one in (head.weight, head.bias)
        )
        assert weight_VE is not None

        def scores(part: slice, weight_VE: torch.Tensor, hidden_mE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            here = positions[part]
            logits_mV = here.penalised(head.logits(hidden_mE, weight_VE, bias_V), None)
            if table_2V is not None:
                logits_mV = logits_mV + table_2V[here.thinks.long()]
            logps_mV = (logits_mV / head.temperature).log_softmax(-1)
            return logps_mV.gather(1, here.targets[:, None]).squeeze(1), _entropy(logps_mV)

        return _in_parts(scores, positions, weight_VE, "entropy" in head.outputs)


def _entropy(logps_mC: torch.Tensor) -> torch.Tensor:
    return -(logps_mC.exp() * logps_mC).sum(-1)


def _in_parts(
    scores: Callable[[slice, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    positions: _Positions,
    weight_UE: torch.Tensor,
    with_entropy: bool,
) -> Scores:
    """Scores of some positions at a time, computed again in the backward pass, so that no more logits are kept."""
    rows = max(1, LOGITS // max(len(weight_UE), 1))
    found = [
        checkpoint(scores, part, weight_UE, positions.hidden[part], use_reentrant=False)
        for part in (slice(start, start + rows) for start in range(0, max(len(positions), 1), rows))
    ]
    logps_M, entropy_M = (torch.cat(parts) for parts in zip(*found, strict=True))
    return logps_M, entropy_M if with_entropy else None, None, None, None


def _either(
    positions: _Positions,
    which_M: torch.Tensor,
    head: _Head,
    chosen: Callable[[_Positions, _Head], Scores],
    others: Callable[[_Positions, _Head], Scores],
) -> Scores:
    """Scores by one function where `which_M`, by another one elsewhere."""
    at_M, rest_M = which_M.nonzero().squeeze(1), (~which_M).nonzero().squeeze(1)
    if not len(at_M):
        return others(positions, head)
    if not len(rest_M):
        return chosen(positions, head)
    back_M = torch.cat([at_M, rest_M]).argsort()
    columns = zip(chosen(positions[at_M], head), others(positions[rest_M], head), strict=True)
    return tuple(
        None if one is None or other is None else torch.cat([one, other]).index_select(0, back_M)
        for one, other in columns
    )
