"""Splitting a micro-batch into chunks, and the forward and backward passes over them.

A chunk runs forward and backward before the next one, so that only one is in memory. Its loss is weighted so that the
chunks add up to the loss of the micro-batch. Knows tensors and accelerate, not TRL.

With several processes, forward and backward passes and the metrics hold collective operations: every process must run
equally many. A process with too few rows runs a *dummy row*: one prompt and one completion token, excluded from the
loss and all metrics, whose gradient is exactly zero for every parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

Batch = dict[str, Any]
"""Tensors and lists with one entry per row, and scalars about all of them."""
PLAN = "covey_plan"
"""The key under which a micro-batch holds its plan."""

PROMPT_KEYS = ("prompt_ids", "prompt_mask")
COMPLETION_KEYS = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "support",
    "importance_sampling_ratio",
)
SEQUENCE_KEYS = ("token_type_ids", "mm_token_type_ids")


class RowShape(NamedTuple):
    """What a row of a batch costs and counts; lengths in tokens."""

    prompt: int
    completion: int
    counted: int
    """Completion tokens that the loss counts."""
    has_gradient: bool
    """Whether its gradient can be other than zero."""
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Sums over the micro-batches whose metrics are averaged together, over all processes."""

    tokens: int
    """Tokens that the loss counts, in the rows that were computed."""
    rows: int
    all_tokens: int
    """The same with the rows that were left out."""
    all_rows: int
    micro_batches: int
    by_rows: bool
    """Whether clip fractions count rows instead of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlan:
    """The chunks of a micro-batch on this process; numbers for metrics are over all processes."""

    ends: list[int]
    """For each chunk the index after its last row."""
    weights: list[float]
    """Factor on the loss of each chunk."""
    dummies: list[bool]
    """Whether a chunk is a dummy row."""
    widths: list[list[int]]
    """Widths of prompts and completions in each chunk."""
    tokens: list[int]
    """Tokens of each chunk that the loss counts."""
    rows: list[int]
    most_rows: list[int]
    """Most rows that a process has in each chunk."""
    all_tokens: int
    """Of the micro-batch, with the rows that were left out."""
    all_rows: int
    totals: StepTotals | None = None
    """What metrics are averaged over; None where TRL's own average is right."""

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint, under the names of earlier versions."""
        state = asdict(self)
        state["stand_ins"], totals = state.pop("dummies"), state.pop("totals")
        return state if totals is None else {**state, "among": totals}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """The plan with this state."""
        fields = {key: value for key, value in state.items() if key not in ("stand_ins", "among")}
        among = {key: value for key, value in state.get("among", {}).items() if key != "left_out"}  # of older ones
        return cls(**fields, dummies=state["stand_ins"], totals=StepTotals(**among) if among else None)


def split_rows(
    rows: Sequence[RowShape], budget: int | None, *, packed: bool, multiple_of: int = 1, at_least: int = 1
) -> list[list[int]]:
    """Split the rows with a gradient, in order, into chunks of at most `budget` tokens; a longer row is its own chunk.

    Args:
        rows: a micro-batch.
        budget: None for no limit.
        packed: whether a chunk costs its tokens, with the prompt of a group once; else its rows times its longest row.
            Packed chunks end at the end of a group if possible.
        multiple_of: padded widths are a multiple of this.
        at_least: keep splitting until there are this many chunks, or one per row.

    Returns:
        The indices of each chunk's rows.
    """
    left = [place for place, row in enumerate(rows) if row.has_gradient]
    chunks = []
    while left:
        end = _longest_fit(rows, left, budget, packed, multiple_of)
        chunks.append(left[:end])
        left = left[end:]
    while chunks and len(chunks) < at_least:
        index = max(range(len(chunks)), key=lambda i: len(chunks[i]))
        chunk = chunks[index]
        if len(chunk) == 1:
            break
        chunks[index : index + 1] = [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
    return chunks


def _longest_fit(
    rows: Sequence[RowShape], left: Sequence[int], budget: int | None, packed: bool, multiple_of: int
) -> int:
    """How many of the rows that are left make the next chunk."""
    tokens = prompt = completion = 0
    ends = []  # where a group ends
    for count, place in enumerate(left):
        row = rows[place]
        new_group = count == 0 or row.group != rows[left[count - 1]].group
        prompt, completion = max(prompt, row.prompt), max(completion, row.completion)
        tokens += row.completion + (row.prompt if new_group else 0)
        padded = (count + 1) * (_up(prompt, multiple_of) + _up(completion, multiple_of))
        if new_group and count:
            ends.append(count)
        if budget is not None and count and (tokens if packed else padded) > budget:
            return ends[-1] if packed and ends else count
    return len(left)


def plan_chunks(
    all_chunks: Sequence[Sequence[Sequence[RowShape]]],
    all_rows: Sequence[RowShape],
    process: int,
    *,
    weights: Sequence[float],
    multiple_of: int = 1,
    dummy_prompt: int = 1,
) -> ChunkPlan:
    """The chunk plan of a micro-batch.

    Args:
        all_chunks: for every process the rows of each of its chunks; none for a dummy row.
        all_rows: the rows of the micro-batch over all processes, including those left out.
        process: index of this process.
        weights: factor on the loss of each chunk of this process.
        multiple_of: padded widths are a multiple of this.
        dummy_prompt: width of a dummy row's prompt.
    """
    mine = all_chunks[process]
    ends: list[int] = []
    for rows in mine:
        ends.append((ends[-1] if ends else 0) + max(len(rows), 1))
    places = range(len(mine))
    return ChunkPlan(
        ends=ends,
        weights=list(weights),
        dummies=[not rows for rows in mine],
        widths=[_widths(rows, multiple_of) if rows else [dummy_prompt, 1] for rows in mine],
        tokens=[sum(row.counted for chunks in all_chunks for row in chunks[place]) for place in places],
        rows=[sum(max(len(chunks[place]), 1) for chunks in all_chunks) for place in places],
        most_rows=[max(max(len(chunks[place]), 1) for chunks in all_chunks) for place in places],
        all_tokens=sum(row.counted for row in all_rows),
        all_rows=len(all_rows),
    )


def trim_padding(batch: Batch, prompt: int, completion: int) -> Batch:
    """Keep the last columns of prompts and the first of completions; numbers above their widths change nothing.

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
        if key in SEQUENCE_KEYS and value.shape[1] == length + width:
            return value[:, max(length - prompt, 0) : length + completion]
        return value

    return {key: cut(key, value) for key, value in batch.items()}


def make_dummy_rows(batch: Batch, count: int, *, keeps_prompt: bool) -> Batch:
    """Turn the last `count` rows into dummy rows: one completion token, which the loss does not count.

    Args:
        batch: whose last rows may be anything.
        count: how many.
        keeps_prompt: whether the prompt stays whole (as it must where it holds images) instead of one token.
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


def chunks_of(batch: Batch, plan: ChunkPlan | None) -> Iterator[tuple[Batch, float]]:
    """The chunks of a micro-batch, each trimmed to its own longest row, with the weight of its loss."""
    if plan is None:
        yield batch, 1.0
        return
    rest = {key: value for key, value in batch.items() if key != PLAN}
    if len(plan.ends) == 1 and not plan.dummies[0]:
        yield rest, plan.weights[0]
        return
    start = 0
    for end, weight, dummy, widths in zip(plan.ends, plan.weights, plan.dummies, plan.widths, strict=True):
        chunk = trim_padding({key: _rows(value, start, end) for key, value in rest.items()}, *widths)
        if dummy:  # its prompt has changed, so the old log-probs do not apply
            chunk.pop("old_per_token_logps", None)
        yield chunk, weight
        start = end


def forward_in_chunks(
    batch: Batch,
    plan: ChunkPlan | None,
    loss_of: Callable[[Batch], Tensor],
    *,
    backward: Callable[[Tensor], None],
    model: torch.nn.Module,
    accelerator: Any,
) -> Tensor:
    """The loss of a micro-batch by its plan. The backward pass of all chunks but the last has run when it returns.

    Args:
        batch: the micro-batch.
        plan: None for a single chunk.
        loss_of: the loss of a chunk as if it were a micro-batch.
        backward: runs the backward pass of a loss.
        model: whose gradients are accumulated.
        accelerator: of the run. It reports incomplete gradients until the last chunk.

    Returns:
        A scalar with the value of the whole micro-batch's loss and the gradient of the last chunk.
    """
    chunks = list(chunks_of(batch, plan))
    most_rows = [len(chunk["prompt_ids"]) for chunk, _ in chunks] if plan is None else plan.most_rows
    done: Tensor | None = None
    for (chunk, weight), most in zip(chunks[:-1], most_rows, strict=False):
        with _gradients_incomplete(model, accelerator), _uneven_gather(accelerator, len(chunk["prompt_ids"]), most):
            loss = loss_of(chunk) * weight
            backward(loss)
        done = loss.detach() if done is None else done + loss.detach()
    chunk, weight = chunks[-1]
    with _uneven_gather(accelerator, len(chunk["prompt_ids"]), most_rows[-1]):
        loss = loss_of(chunk)
    if weight != 1:
        loss = loss * weight
    return loss if done is None else loss + done


@contextmanager
def _gradients_incomplete(model: torch.nn.Module, accelerator: Any) -> Iterator[None]:
    state = accelerator.gradient_state
    complete = state.sync_gradients
    state._set_sync_gradients(False)
    try:
        if isinstance(model, DistributedDataParallel):
            with model.no_sync():
                yield
        else:  # sharded gradients are reduced chunk by chunk: kept whole, they would take the memory that chunks save
            yield
    finally:
        state._set_sync_gradients(complete)


@contextmanager
def _uneven_gather(accelerator: Any, rows: int, most: int) -> Iterator[None]:
    """Context manager: gathers one number per row; processes with fewer rows than others pad with NaN."""
    if rows == most:
        yield
        return
    gather = accelerator.gather

    def padded(tensor: Any) -> Any:
        if isinstance(tensor, Tensor) and tensor.shape == (rows,):
            tensor = torch.cat([tensor, tensor.new_full((most - rows,), torch.nan)])
        return gather(tensor)

    accelerator.gather = padded
    try:
        yield
    finally:
        del accelerator.gather  # restores the method of the class


def _rows(value: Any, start: int, end: int) -> Any:
    if isinstance(value, Tensor):
        return value[start:end] if value.ndim else value
    return value[start:end] if isinstance(value, list) else value


def _widths(rows: Sequence[RowShape], multiple_of: int) -> list[int]:
    return [_up(max(1, *(row[axis] for row in rows)), multiple_of) for axis in (0, 1)]


def _up(width: int, multiple_of: int) -> int:
    return -(-width // multiple_of) * multiple_of
