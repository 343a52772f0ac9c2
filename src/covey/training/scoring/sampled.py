"""How completions were sampled, as far as scoring them needs it. Knows tensors, not TRL.

The sampler and the scorer must normalise over the same tokens, or their ratio at unchanged weights is not 1 but the
probability that top-k, top-p and min-p have left. So the sampler ships the tokens that could be sampled in each place,
and the batch holds them beside TRL's `sampling_per_token_logps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

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
    widened = [torch.nn.functional.pad(turn, (0, width - turn.shape[1]), value=-1) for turn in turns]
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
