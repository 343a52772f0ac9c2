"""The sync proof: does the engine that writes the completions hold the weights that are trained?

An engine with other weights answers as readily as one with the right ones, and trains a model on another's words. So
after each sync both sides give log-probabilities of the same few tokens, and these are compared. Knows numbers and a
model, neither TRL nor vLLM.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from covey.errors import EngineError

TOLERANCE = {"float32": 1e-3, "half": 0.1}
"""Largest mean difference by the coarser of the two sides' number types, in nats per token."""

_MOVED = {"float32": 1e-5, "half": 1e-3}
"""A change of the trainer's own log-probabilities that rounding cannot have made: the engine's must change as well."""

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
    """How far the two sides are apart after a sync."""

    mean: float
    """Mean absolute difference of the log-probabilities, in nats per token."""
    largest: float
    moved: float
    """Mean absolute change of the trainer's own since the sync before; 0 at the first one."""
    frozen: bool
    """Whether the engine's are bit for bit those of the sync before, though the trainer's moved."""


def probe_rows(tokenizer: Any, *, most: int = _ROW) -> Rows:
    """The tokens that are compared: some texts, and ordinary tokens from all over the vocabulary, drawn once.

    Args:
        tokenizer: of the policy.
        most: tokens that a row may have, at least 2.
    """
    rows = [list(ids[:most]) for ids in tokenizer(list(_TEXTS), add_special_tokens=False)["input_ids"]]
    special = set(tokenizer.all_special_ids)
    ordinary = [token for token in sorted(set(tokenizer.get_vocab().values())) if token not in special]
    if ordinary:
        draw = random.Random(0)  # not a generator that the training draws from
        rows.append([draw.choice(ordinary) for _ in range(min(_RANDOM_ROW, most))])
    return [row for row in rows if len(row) > 1]


@torch.no_grad()
def own_logps(model: torch.nn.Module, rows: Rows) -> list[list[float]]:
    """Log-probabilities of each row's tokens after its first one, by the model's own forward pass.

    Adapters count as they stand beside the weights, not merged. Dropout is off, and the modes of all modules are as
    before afterwards.
    """
    device = next(model.parameters()).device
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        found = []
        for row in rows:  # one by one: without padding there is nothing that the two sides could pad differently
            ids = torch.tensor([row], device=device)
            logits_TV = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, :-1]
            logps_TV = logits_TV.float().log_softmax(dim=-1)
            found.append(logps_TV.gather(-1, ids[0, 1:, None])[:, 0].tolist())
        return found
    finally:
        for module in training:
            module.training = True


class SyncProof:
    """Compares the two sides after each sync, and remembers what they said at the one before."""

    def __init__(self, tolerance: float | None, number_types: Collection[str]) -> None:
        """
        Args:
            tolerance: `launch.sync_tolerance`; None takes the one of the number type.
            number_types: of the trainer and of the engine, such as `float32`.
        """
        kind = "float32" if set(number_types) == {"float32"} else "half"
        self.tolerance = TOLERANCE[kind] if tolerance is None else tolerance
        self._rounding = _MOVED[kind]
        self._before: tuple[torch.Tensor, torch.Tensor] | None = None

    def compare(self, own: Sequence[Sequence[float]], engine: Sequence[Sequence[float]]) -> Gap:
        """The gap between the two sides now. NaN from either side counts as infinitely far."""
        ours, theirs = (torch.tensor([x for row in side for x in row], dtype=torch.float64) for side in (own, engine))
        if ours.shape != theirs.shape:
            raise EngineError(
                f"vLLM gave log-probabilities of {len(theirs)} tokens where {len(ours)} were asked for: it does not "
                "read the tokens that the trainer reads. Does it serve the model that is trained?"
            )
        difference = (ours - theirs).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
        moved, frozen = 0.0, False
        if self._before is not None:
            moved = float((ours - self._before[0]).abs().mean())
            frozen = torch.equal(theirs, self._before[1]) and moved > self._rounding
        self._before = (ours, theirs)
        return Gap(float(difference.mean()), float(difference.max()), moved, frozen)

    def complaint(self, gap: Gap, step: int) -> EngineError | None:
        """What is wrong with this gap; None if nothing is."""
        if gap.frozen:
            found = (
                f"vLLM's log-probabilities are the same as before the sync, bit for bit, while the trainer's moved by "
                f"{gap.moved:.2g} nats per token"
            )
        elif not gap.mean <= self.tolerance:
            found = (
                f"the log-probabilities of vLLM and of the trainer differ by {gap.mean:.3g} nats per token on average "
                f"({gap.largest:.3g} at most), more than launch.sync_tolerance ({self.tolerance:g})"
            )
        else:
            return None
        return EngineError(
            f"After the weight sync at step {step}, {found}: the engine does not hold the weights that are trained, so "
            "the run was stopped. A stale layer, another model on the server, or another number type can be the cause "
            "(docs/vllm.md says how to tell them apart). If it is rounding alone, raise launch.sync_tolerance."
        )
