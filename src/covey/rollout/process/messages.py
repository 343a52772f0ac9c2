"""What the trainer and its rollout process send each other.

The trainer's messages are pickled; those of the rollout process are plain data and bytes (`covey.workers.channel`), so
that nothing that is read runs code in the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from covey.rollout.engine import Completion, SamplingSettings
from covey.rollout.process.model_copy import ModelCopy
from covey.workers.channel import BadMessageError

Seed = int | Sequence[int] | None

READY, ROW, DONE, FAILED, LOG = "ready", "row", "done", "failed", "log"
"""The first element of a message of the rollout process: its capabilities by name; a completion; the end of a call; a
call's error, by the name of its class, and its text; a line for the log."""


class Start(NamedTuple):
    """After `sys.path`, the first message to the rollout process."""

    model: ModelCopy | str
    """The model to build; or its name."""
    device: torch.device
    threads: int
    matmul_precision: str
    """Of float32: `torch.set_float32_matmul_precision`."""
    deterministic: bool
    """`torch.use_deterministic_algorithms`."""
    options: dict[str, Any]
    """Of `LocalEngine`, the tokenizer among them."""


class Generate(NamedTuple):
    """Write completions; answered by a `ROW` for each, as soon as it ends, and `DONE`."""

    call: int
    prompts: list[list[int]]
    sampling: SamplingSettings
    seed: Seed
    max_lengths: list[int] | None


class Interrupt(NamedTuple):
    """End this call and those before it between two tokens."""

    call: int


class Sync(NamedTuple):
    """Read the weights of a folder; answered by `DONE`."""

    call: int
    folder: str
    version: int


def row_message(call: int, index: int, one: Completion) -> tuple[list[Any], bytes]:
    """A completion as plain data, and its support as bytes."""
    support = None if one.support is None else one.support.to("cpu", torch.int32).contiguous()
    shape = None if support is None else list(support.shape)
    data = b"" if support is None else support.numpy().tobytes()
    return [ROW, call, index, one.ids, one.truncated, one.logps, one.text, shape, one.unfinished], data


def read_row(body: Sequence[Any], data: bytearray) -> tuple[int, Completion]:
    """The index and the completion of a `ROW`, from what follows the number of its call. Raises a `BadMessageError` if
    it is none."""
    try:
        index, ids, truncated, logps, text, shape, unfinished = body
        support = None
        if shape is not None:
            support = (torch.frombuffer(data, dtype=torch.int32) if data else torch.empty(0, dtype=torch.int32)).view(
                shape
            )
        return int(index), Completion(list(map(int, ids)), bool(truncated), logps, text, support, bool(unfinished))
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadMessageError(f"something that is not a completion ({error})") from None
