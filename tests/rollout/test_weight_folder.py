"""Weights through a folder: every tensor by name, in as many files as the size needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from covey.rollout import weight_folder
from covey.rollout.weight_folder import read_folder, write_folder


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_folder, "_FILE_BYTES", 40)
    weights = {
        "a": torch.arange(12.0).view(3, 4).t(),  # not contiguous
        "b": torch.ones(3, dtype=torch.bfloat16, requires_grad=True),
        "c": torch.arange(5),
    }
    assert write_folder(tmp_path, weights.items()) == 3
    assert len(list(tmp_path.iterdir())) == 2
    found = dict(read_folder(tmp_path))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) and found[name].dtype == weights[name].dtype for name in weights)


def test_a_tensor_that_changes_after_it_was_read_by_the_writer(tmp_path: Path) -> None:
    """As adapters do, which are unmerged in the same memory."""
    weight = torch.ones(2)

    def named() -> object:
        yield "a", weight
        weight.zero_()

    write_folder(tmp_path, named())  # type: ignore[arg-type]
    assert dict(read_folder(tmp_path))["a"].tolist() == [1, 1]
