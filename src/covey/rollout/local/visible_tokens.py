"""Which tokens of its prompt and of its own each row attends to, in layers with and without a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Columns:
    """Where rows have their tokens, in a cache of completions, and in which columns the new ones are."""

    column: int
    """Where the first new token of every row is written."""
    count: int
    """New tokens of each row in this forward, R."""
    starts: Sequence[int]
    """The first column of each row."""
    lengths: Sequence[int]
    """Tokens of each row's prompt."""
    starts_b: torch.Tensor
    """The same on the device, as copying them there in every step would be a wait."""
    lengths_b: torch.Tensor


@dataclass(slots=True)
class Visible:
    """What layers of one kind attend to in a forward. Biases are None where all rows see the same tokens."""

    prompt_from: int
    completion_from: int
    prompt_bias: torch.Tensor | None = None
    """`[b, R, L]`, added to the scores of the prompt's tokens."""
    completion_bias: torch.Tensor | None = None
    """`[b, R, t]`, added to the scores of the completion's tokens."""


def visible(rows: Columns, window: int | None, width: int) -> Visible:
    """What layers attend to with this sliding window, None for full attention, and prompts of this width."""
    first = min(rows.starts)
    one_by_one = rows.count == 1
    if one_by_one and max(rows.starts) == first and min(rows.lengths) == max(rows.lengths):
        reach_all = min(rows.lengths[0], width)
        if window is not None:
            reach_all = min(reach_all, max(window - 1 - (rows.column - first), 0))
            first = max(first, rows.column - window + 1)
        return Visible(width - reach_all, first)
    reach = [min(length, width) for length in rows.lengths]
    if window is not None:
        since = [rows.column - start for start in rows.starts]
        reach = [min(n, max(window - 1 - t, 0)) for n, t in zip(reach, since, strict=True)]
        first = max(first, rows.column - window + 1)
    max_reach = max(reach)
    found = Visible(width - max_reach, first)
    if not one_by_one or min(reach) < max_reach or max(rows.starts) > first:
        _hide_from_rows(found, rows, window, width)
    return found


def _hide_from_rows(found: Visible, rows: Columns, window: int | None, width: int) -> None:
    """Set the biases. Before its start a row has padding, which attends to the prompt, and to which nothing does."""
    device = rows.starts_b.device
    reach_b1 = rows.lengths_b.clamp(max=width)[:, None]
    back_L = torch.arange(width - found.prompt_from - 1, -1, -1, device=device)
    column_t = torch.arange(found.completion_from, rows.column + rows.count, device=device)
    hidden_bRt = (column_t < rows.starts_b[:, None])[:, None]
    if rows.count == 1:
        if window is not None:
            reach_b1 = torch.minimum(reach_b1, (window - 1 - rows.column + rows.starts_b).clamp(min=0)[:, None])
    else:
        new_R1 = torch.arange(rows.column, rows.column + rows.count, device=device)[:, None]
        hidden_bRt = hidden_bRt | (column_t > new_R1)
        if window is not None:
            hidden_bRt |= column_t <= new_R1 - window
            since_bR = new_R1.squeeze(1) - rows.starts_b[:, None]
            reach_b1 = torch.minimum(reach_b1, (window - 1 - since_bR).clamp(min=0))
    hidden_bRL = (back_L >= reach_b1[..., None]).expand(-1, rows.count, -1)
    found.prompt_bias, found.completion_bias = _bias(hidden_bRL), _bias(hidden_bRt)


def _bias(hidden: torch.Tensor) -> torch.Tensor:
    """A mask to add to scores: minus infinity where hidden."""
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)
