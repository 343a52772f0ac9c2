"""Values of user code as plain data."""

from __future__ import annotations

from typing import Any

import pytest

from covey.workers.plain_data import NotPlainError, plain


def test_plain_data_is_kept_and_other_values_are_refused() -> None:
    import datetime

    import numpy as np
    import torch

    given = [
        np.float32(0.5),
        np.int64(3),
        torch.tensor([1, 2]),
        np.array([[1.0]]),
        True,
        "é",
        datetime.date(2026, 1, 2),
    ]
    assert plain(given) == [0.5, 3, [1, 2], [[1.0]], True, "é", "2026-01-02"]
    assert [type(value) for value in plain(given)[:2]] == [float, int]
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    for bad in (object(), print, deep, 10**400, b"bytes"):
        with pytest.raises(NotPlainError):
            plain([bad])
