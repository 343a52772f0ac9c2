"""Micro-batches that go through the model in pieces, rows that need not go through it, and what both do to metrics.

A piece runs forward and backward before the next one begins, so that memory is that of a piece. Its loss is weighed so
that the pieces add up to the loss of the micro-batch. Knows tensors and accelerate, not TRL.

With several processes, forward and backward passes hold collective operations, and so do the metrics: every process
must make as many. A process with too few rows lets a *stand-in* go through: one token after one token, which counts
nowhere, and whose gradient is exactly zero for every parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

Batch = dict[str, Any]

Plan = dict[str, Any]
"""How a micro-batch goes through the model, see `plan_of`: plain numbers only, for a checkpoint holds it."""
PLAN = "covey_plan"
"""Where a micro-batch keeps its plan."""

PROMPT_KEYS = ("prompt_ids", "prompt_mask")
COMPLETION_KEYS = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)
WHOLE_KEYS = ("token_type_ids", "mm_token_type_ids")


class Row(NamedTuple):
    """What is known of a row, in tokens."""

    prompt: int
    completion: int
    counted: int
    """Completion tokens that the loss counts."""
    live: bool
    """Whether it can have a gradient other than zero."""
    group: int


def cut_pieces(
    rows: Sequence[Row], budget: int | None, *, packed: bool, multiple_of: int = 1, at_least: int = 1
) -> list[list[int]]:
    """Cut the live rows, as they stand, into pieces of at most `budget` tokens; a row above it is one of its own.

    Args:
        rows: a micro-batch.
        budget: None for no limit.
        packed: what a piece costs: its tokens, with the prompt of a group once; else its rows times its longest row.
            Packed pieces end where a group ends if they can.
        multiple_of: what padded widths are a multiple of.
        at_least: go on cutting until there are as many, or every row is alone.

    Returns:
        The places of each piece's rows.
    """
    live = [place for place, row in enumerate(rows) if row.live]
    pieces = []
    while live:
        end = _longest_fit(rows, live, budget, packed, multiple_of)
        pieces.append(live[:end])
        live = live[end:]
    while pieces and len(pieces) < at_least:
        index = max(range(len(pieces)), key=lambda i: len(pieces[i]))
        piece = pieces[index]
        if len(piece) == 1:
            break
        pieces[index : index + 1] = [piece[: len(piece) // 2], piece[len(piece) // 2 :]]
    return pieces


def _longest_fit(rows: Sequence[Row], live: Sequence[int], budget: int | None, packed: bool, multiple_of: int) -> int:
    """How many of the live rows, from the first, make the next piece."""
    tokens = prompt = completion = 0
    ends = []  # where a group ends
    for count, place in enumerate(live):
        row = rows[place]
        new_group = count == 0 or row.group != rows[live[count - 1]].group
        prompt, completion = max(prompt, row.prompt), max(completion, row.completion)
        tokens += row.completion + (row.prompt if new_group else 0)
        padded = (count + 1) * (_up(prompt, multiple_of) + _up(completion, multiple_of))
        if new_group and count:
            ends.append(count)
        if budget is not None and count and (tokens if packed else padded) > budget:
            return ends[-1] if packed and ends else count
    return len(live)


def plan_of(
    everyone: Sequence[Sequence[Sequence[Row]]],
    all_rows: Sequence[Row],
    process: int,
    *,
    weights: Sequence[float],
    multiple_of: int = 1,
    stand_in_prompt: int = 1,
) -> Plan:
    """Write down how a micro-batch goes through the model.

    Args:
        everyone: for every process the rows of each of its pieces; none for a stand-in.
        all_rows: the rows of the micro-batch over all processes, with those that were left out.
        process: which one this is.
        weights: what the loss of each piece of this process is multiplied by.
        multiple_of: what padded widths are a multiple of.
        stand_in_prompt: width of a stand-in's prompt.

    Returns:
        For each piece of this process `ends` (its rows end before that place), `weights`, `stand_ins` and `widths` (of
        prompts and completions). Over all processes, for metrics: `tokens` (that the loss counts), `rows` of each piece
        and `most_rows` that a process has in it; `all_tokens` and `all_rows` of the micro-batch.
    """
    mine = everyone[process]
    ends: list[int] = []
    for rows in mine:
        ends.append((ends[-1] if ends else 0) + max(len(rows), 1))
    places = range(len(mine))
    return {
        "ends": ends,
        "weights": list(weights),
        "stand_ins": [not rows for rows in mine],
        "widths": [_widths(rows, multiple_of) if rows else [stand_in_prompt, 1] for rows in mine],
        "tokens": [sum(row.counted for pieces in everyone for row in pieces[place]) for place in places],
        "rows": [sum(max(len(pieces[place]), 1) for pieces in everyone) for place in places],
        "most_rows": [max(max(len(pieces[place]), 1) for pieces in everyone) for place in places],
        "all_tokens": sum(row.counted for row in all_rows),
        "all_rows": len(all_rows),
    }


def narrow(batch: Batch, prompt: int, completion: int) -> Batch:
    """Cut padding off: prompts to their last columns, completions to their first; wider than they are changes nothing.

    Args:
        batch: tensors `[B, L]`, `[B, T]` and `[B, L + T]` by their usual names, and anything else, which stays.
        prompt: columns to keep of L.
        completion: columns to keep of T.
    """
    length, width = batch["prompt_ids"].shape[1], batch["completion_ids"].shape[1]

    def cut(key: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim < 2:
            return value
        if key in PROMPT_KEYS:
            return value[:, max(length - prompt, 0) :]
        if key in COMPLETION_KEYS and value.shape[1] == width:
            return value[:, :completion]
        if key in WHOLE_KEYS and value.shape[1] == length + width:
            return value[:, max(length - prompt, 0) : length + completion]
        return value

    return {key: cut(key, value) for key, value in batch.items()}


def dress_stand_ins(batch: Batch, count: int, *, keeps_prompt: bool) -> Batch:
    """Make stand-ins of the last `count` rows: one completion token, which the loss does not count.

    Args:
        batch: whose last rows may be anything.
        count: how many.
        keeps_prompt: whether the prompt stays whole (as it must where it stands for pictures) instead of one token.
    """
    mask = batch["completion_mask"]
    counted = batch.get("tool_mask")
    batch = {**batch, "tool_mask": torch.ones_like(mask) if counted is None else counted.clone()}
    for key in ("prompt_mask", "completion_mask", "advantages"):
        batch[key] = batch[key].clone()
    if not keeps_prompt:
        batch["prompt_mask"][-count:] = 0
        batch["prompt_mask"][-count:, -1] = 1
    batch["completion_mask"][-count:] = 0
    batch["completion_mask"][-count:, 0] = 1
    batch["tool_mask"][-count:] = 0
    batch["advantages"][-count:] = 0
    if batch.get("importance_sampling_ratio") is not None:
        batch["importance_sampling_ratio"] = batch["importance_sampling_ratio"].clone()
        batch["importance_sampling_ratio"][-count:] = 1
    return batch


def pieces_of(batch: Batch, plan: Plan | None) -> Iterator[tuple[Batch, float]]:
    """The pieces of a micro-batch, each cut to its own longest row, with the weight of its loss."""
    if plan is None:
        yield batch, 1.0
        return
    rest = {key: value for key, value in batch.items() if key != PLAN}
    if len(plan["ends"]) == 1 and not plan["stand_ins"][0]:
        yield rest, plan["weights"][0]
        return
    start = 0
    for end, weight, stand_in, widths in zip(
        plan["ends"], plan["weights"], plan["stand_ins"], plan["widths"], strict=True
    ):
        piece = narrow({key: _rows(value, start, end) for key, value in rest.items()}, *widths)
        if stand_in:  # after another prompt, its ratio to what it was before could be anything
            piece.pop("old_per_token_logps", None)
        yield piece, weight
        start = end


def in_pieces(
    batch: Batch,
    plan: Plan | None,
    loss_of: Callable[[Batch], Tensor],
    *,
    backward: Callable[[Tensor], None],
    model: torch.nn.Module,
    accelerator: Any,
) -> Tensor:
    """The loss of a micro-batch by its plan. All pieces but the last have gone backward when it returns.

    Args:
        batch: the micro-batch.
        plan: see `plan_of`; None for a micro-batch that is one piece as it is.
        loss_of: the loss of a piece as if it were a micro-batch.
        backward: runs the backward pass of a loss.
        model: what gradients are added up in.
        accelerator: of the run. While a piece is not the last, it says that gradients are not complete yet.

    Returns:
        A scalar with the value of the whole micro-batch's loss and the gradient of the last piece.
    """
    pieces = list(pieces_of(batch, plan))
    most_rows = [len(piece["prompt_ids"]) for piece, _ in pieces] if plan is None else plan["most_rows"]
    gone: Tensor | None = None
    for (piece, weight), most in zip(pieces[:-1], most_rows, strict=False):
        with _to_be_continued(model, accelerator), _uneven_gather(accelerator, len(piece["prompt_ids"]), most):
            loss = loss_of(piece) * weight
            backward(loss)
        gone = loss.detach() if gone is None else gone + loss.detach()
    piece, weight = pieces[-1]
    with _uneven_gather(accelerator, len(piece["prompt_ids"]), most_rows[-1]):
        loss = loss_of(piece)
    if weight != 1:
        loss = loss * weight
    return loss if gone is None else loss + gone


@contextmanager
def _to_be_continued(model: torch.nn.Module, accelerator: Any) -> Iterator[None]:
    state = accelerator.gradient_state
    complete = state.sync_gradients
    state._set_sync_gradients(False)
    try:
        if isinstance(model, DistributedDataParallel):
            with model.no_sync():
                yield
        else:  # sharded gradients are reduced piece by piece: kept whole, they would take the memory that pieces save
            yield
    finally:
        state._set_sync_gradients(complete)


@contextmanager
def _uneven_gather(accelerator: Any, rows: int, most: int) -> Iterator[None]:
    """Within, numbers of one per row are gathered from processes with fewer rows than others, which add NaN."""
    if rows == most:
        yield
        return
    gather = accelerator.gather

    def evenly(tensor: Any) -> Any:
        if isinstance(tensor, Tensor) and tensor.shape == (rows,):
            tensor = torch.cat([tensor, tensor.new_full((most - rows,), torch.nan)])
        return gather(tensor)

    accelerator.gather = evenly
    try:
        yield
    finally:
        del accelerator.gather  # the method of the class again


def _rows(value: Any, start: int, end: int) -> Any:
    if isinstance(value, Tensor):
        return value[start:end] if value.ndim else value
    return value[start:end] if isinstance(value, list) else value


def _widths(rows: Sequence[Row], multiple_of: int) -> list[int]:
    return [_up(max(1, *(row[axis] for row in rows)), multiple_of) for axis in (0, 1)]


def _up(width: int, multiple_of: int) -> int:
    return -(-width // multiple_of) * multiple_of
