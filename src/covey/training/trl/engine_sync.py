"""The weight-sync check: does the engine that generates the completions hold the trained weights?

An engine with other weights answers just as well, and the model would train on another model's completions. So after
each sync, both sides compute log-probs of the same few tokens, and these are compared. Knows numbers and a model,
neither TRL nor vLLM.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from covey.errors import EngineError
from covey.model.base import evaluating

TOLERANCE = {"float32": 1e-3, "half": 0.1}
"""Largest mean difference by the coarser of the two dtypes, in nats per token, unless the first gap is large itself."""

FACTOR = 5.0
"""How many times the first gap a later one may be in 16 bits. Their rounding adds up over layers: a deep model's first
gap, when both sides hold the same weights by construction, may be near `TOLERANCE` and is no fault. It is an error
itself from `FACTOR` times `TOLERANCE` on: another model's weights differ by more."""

_MOVED = {"float32": 1e-5, "half": 1e-3}
"""A change of the trainer's log-probs beyond rounding: the engine's must change as well."""

_TEXTS = (
    "A farmer has 17 sheep and buys 25 more. Each sheep gives 3 kg of wool, so he has 17 + 25 = 42 sheep",
    "Let x be the number of days. Then 4x + 12 = 60, and so x = 12. <think> Is that right? 4 * 12 = 48",
    "The committee met on Tuesday to discuss whether the old bridge, built in 1891, should be repaired",
    "def mean(values):\n    if not values:\n        raise ValueError('empty')\n    return sum(values) / len(values)",
)
_ROW, _RANDOM_ROW = 32, 16

Rows = list[list[int]]


@dataclass(frozen=True, slots=True)
class Gap:
    """The difference between the two sides after a sync."""

    mean: float
    """Mean absolute difference of the log-probs, in nats per token."""
    largest: float
    moved: float
    """Mean absolute change of the trainer's since the previous sync; 0 at the first one."""
    frozen: bool
    """Whether the engine's are bit for bit those of the previous sync, although the trainer's changed."""


def probe_rows(tokenizer: Any, *, max_length: int = _ROW) -> Rows:
    """The tokens that are compared: some texts, and a fixed sample of the ordinary tokens of the vocabulary.

    Args:
        tokenizer: of the policy.
        max_length: tokens per row, at least 2.
    """
    rows = [list(ids[:max_length]) for ids in tokenizer(list(_TEXTS), add_special_tokens=False)["input_ids"]]
    special = set(tokenizer.all_special_ids)
    ordinary = [token for token in sorted(set(tokenizer.get_vocab().values())) if token not in special]
    if ordinary:
        draw = random.Random(0)  # not a generator that the training draws from
        rows.append([draw.choice(ordinary) for _ in range(min(_RANDOM_ROW, max_length))])
    return [row for row in rows if len(row) > 1]


@torch.no_grad()
def trainer_logps(model: torch.nn.Module, rows: Rows) -> list[list[float]]:
    """Log-probs of each row's tokens after its first one, by the model's own forward pass.

    Adapters are not merged. Dropout is off; the training modes of all modules are restored.
    """
    device = next(model.parameters()).device
    found = []
    with evaluating(model):
        for row in rows:  # one by one: the two sides could pad differently
            ids = torch.tensor([row], device=device)
            logits_TV = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, :-1]
            logps_TV = logits_TV.float().log_softmax(dim=-1)
            found.append(logps_TV.gather(-1, ids[0, 1:, None])[:, 0].tolist())
    return found


class WeightSyncCheck:
    """Compares the two sides after each sync, and keeps the log-probs of the previous one."""

    def __init__(self, tolerance: float | None, dtypes: Collection[str]) -> None:
        """
        Args:
            tolerance: `launch.sync_tolerance`; None takes that of the dtype.
            dtypes: of the trainer and of the engine, such as `float32`.
        """
        kind = "float32" if set(dtypes) == {"float32"} else "half"
        self._usual = TOLERANCE[kind] if tolerance is None else tolerance
        self._fixed = tolerance is not None or kind == "float32"
        self._first: float | None = None
        self._rounding = _MOVED[kind]
        self._before: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def tolerance(self) -> float:
        """Largest mean gap now, in nats per token."""
        if self._fixed:
            return self._usual
        return FACTOR * self._usual if self._first is None else max(self._usual, FACTOR * self._first)

    def compare(self, own: Sequence[Sequence[float]], engine: Sequence[Sequence[float]]) -> Gap:
        """The gap between the two sides now. NaN from either side counts as an infinite gap."""
        ours, theirs = (torch.tensor([x for row in side for x in row], dtype=torch.float64) for side in (own, engine))
        if ours.shape != theirs.shape:
            raise EngineError(
                f"vLLM returned log-probs of {len(theirs)} tokens where {len(ours)} were asked for: it does not "
                "read the same tokens as the trainer. Does it serve the model that is trained?"
            )
        difference = (ours - theirs).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
        moved, frozen = 0.0, False
        if self._before is not None:
            moved = float((ours - self._before[0]).abs().mean())
            frozen = torch.equal(theirs, self._before[1]) and moved > self._rounding
        self._before = (ours, theirs)
        return Gap(float(difference.mean()), float(difference.max()), moved, frozen)

    def error(self, gap: Gap, step: int) -> EngineError | None:
        """The error for this gap; None if it is within the tolerance."""
        if gap.frozen:
            found = (
                f"vLLM's log-probs are the same as before the sync, bit for bit, while the trainer's changed by "
                f"{gap.moved:.2g} nats per token"
            )
        elif not gap.mean <= self.tolerance:
            found = (
                f"the log-probs of vLLM and of the trainer differ by {gap.mean:.3g} nats per token on average "
                f"({gap.largest:.3g} at most), more than launch.sync_tolerance ({self._explained()})"
            )
        else:
            self._first = gap.mean if self._first is None else self._first
            return None
        return EngineError(
            f"After the weight sync at step {step}, {found}: the engine does not hold the weights that are trained, so "
            "the run was stopped. A stale layer, another model on the server, or another dtype can be the cause "
            "(docs/vllm.md says how to tell them apart). If it is only rounding, raise launch.sync_tolerance."
        )

    def _explained(self) -> str:
        """The tolerance, and where it comes from if it is not the usual one."""
        text = f"{self.tolerance:.4g}"
        if self.tolerance == self._usual:
            return text
        what = "the usual, at the first sync" if self._first is None else "the first gap"
        return f"{text}, {FACTOR:g} times {what}"
