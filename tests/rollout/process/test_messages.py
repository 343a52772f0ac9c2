"""Completions on their way from the rollout process: plain data and bytes, checked where they are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from covey.rollout import Completion
from covey.rollout.process.messages import read_row, row_message
from covey.workers.channel import BadMessageError

LOGPS = [-0.1, -1e-300, float("-inf"), -1 / 3]


@pytest.mark.parametrize(
    "one",
    [
        Completion([5, 2**40, 0, 1], truncated=True, logps=LOGPS, text="ä"),
        Completion([1, 2], truncated=False, support=torch.tensor([[1, 2, -1], [2, 9, 7]], dtype=torch.int32)),
        Completion([1], truncated=False, support=torch.tensor([[1, 2]]).t()[:1]),
        Completion([], truncated=False, logps=[], support=torch.empty(0, 3, dtype=torch.int32), unfinished=True),
    ],
)
def test_what_is_sent_is_read(one: Completion) -> None:
    message, data = row_message(7, 3, one)
    index, found = read_row(json.loads(json.dumps(message))[2:], bytearray(data))
    assert index == 3
    assert found == one
    if one.support is None:
        assert found.support is None
    else:
        assert found.support is not None
        assert found.support.dtype == torch.int32
        assert torch.equal(found.support, one.support.int())


@pytest.mark.parametrize(
    "body",
    [
        [],
        [0, ["x"], True, None, None, None, False],
        [0, [1], True, None, None, [1, 3], False],
        [None, [1], True, None, None, None, False],
    ],
)
def test_anything_else_is_refused(body: list[Any]) -> None:
    with pytest.raises(BadMessageError, match="not a completion"):
        read_row(body, bytearray(4))
