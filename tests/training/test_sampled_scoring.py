"""Supports of rows and turns as tensors of a batch."""

from __future__ import annotations

import pytest
import torch

from covey.training.scoring import Sampled, ScoredRows, joined, padded


def support(*places: list[int]) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int32)


def test_rows_are_padded_to_one_tensor() -> None:
    found = padded([support([1, 2], [3, -1]), None, support([7, 8, 9])], 3)
    assert found.dtype == torch.int32
    none = [-1, -1, -1]
    assert found.tolist() == [[[1, 2, -1], [3, -1, -1], none], [none] * 3, [[7, 8, 9], none, none]]


def test_a_batch_holds_what_is_not_the_default() -> None:
    device = torch.device("cpu")
    assert Sampled().entries((2, 3), device) == {}
    assert Sampled([None, None]).entries((2, 3), device) == {}
    found = Sampled([support([4]), None], 1.1).entries((2, 3), device)
    assert found["support"].shape == (2, 3, 1)
    assert found["repetition_penalty"].ndim == 0
    rows = ScoredRows.of(torch.zeros(2, 5), torch.ones(2, 5), 3, found)
    assert rows.penalty == pytest.approx(1.1)
    assert rows[1:2].support is not None
    assert len(rows[1:2]) == 1


def test_turns_are_joined_around_results() -> None:
    found = joined([support([1, 2], [3, -1]), support([5])], [1, 1, 0, 0, 1])
    assert found is not None
    assert found.tolist() == [[1, 2], [3, -1], [-1, -1], [-1, -1], [5, -1]]
    without = torch.empty(1, 0, dtype=torch.int32)
    mixed = joined([without, support([6, 7])], [1, 0, 1])
    assert mixed is not None
    assert mixed.tolist() == [[-1, -1], [-1, -1], [6, 7]]
    assert joined([without], [1]) is None
    assert joined([], []) is None


def test_columns_of_scored_tokens_and_of_first_occurrences() -> None:
    ids = torch.tensor([[0, 3, 4, 3, 5], [2, 3, 2, 0, 0]])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    rows = ScoredRows(ids, mask, 3)
    assert [index.tolist() for index in rows.scored] == [[0, 0, 0, 1], [2, 3, 4, 2]]
    assert rows.first_columns(6).tolist() == [[5, 5, 5, 1, 2, 4], [5, 5, 0, 1, 5, 5]]
