"""Choosing held-out and training rows by index, reproducibly for a seed."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from covey.errors import DataError

if TYPE_CHECKING:
    from covey.config import DatasetConfig


_HELD_OUT_SHARE = 5  # `test_size` holds out at most one row in this many


def shuffled(count: int, seed: int, what: str = "data") -> list[int]:
    """`0..count-1` in an order drawn from the seed and `what`."""
    order = list(range(count))
    random.Random(f"covey-{what}-{seed}").shuffle(order)
    return order


def rounded_share(rows: int, share: float) -> int:
    """A share of some rows, rounded down (but 0.29 of 100 is 29, despite floating point)."""
    return int(rows * share + 1e-9)


def test_rows(rows: int, dataset: DatasetConfig, name: str) -> int:
    """How many of the training rows are held out where the data has no test split of its own.

    `dataset.test_fraction` of them; else `dataset.test_size`, but no more than a fifth and at least one.

    Raises:
        DataError: that leaves nothing to train on or to evaluate on.
    """
    if dataset.test_fraction is None and dataset.test_size == 0:
        return 0
    if rows < 2:
        raise DataError(
            f"{name} has only one row. At least two are needed: one to train on, and one held out to "
            "evaluate on (or dataset.test_size=0)."
        )
    if dataset.test_fraction is None:
        return max(1, min(dataset.test_size, rows // _HELD_OUT_SHARE))
    return _some(rows, dataset.test_fraction, "dataset.test_fraction", name)


def split_validation(rows: int, dataset: DatasetConfig, name: str) -> tuple[list[int], list[int]]:
    """Indices that stay for training, in their own order, and those held out for validation, drawn with `dataset.seed`.
    Raises a `DataError` if `dataset.validation_fraction` leaves one of the two empty."""
    if not dataset.validation_fraction:
        return list(range(rows)), []
    count = _some(rows, dataset.validation_fraction, "dataset.validation_fraction", name)
    drawn = shuffled(rows, dataset.seed, "validation")[:count]
    chosen = set(drawn)
    return [i for i in range(rows) if i not in chosen], drawn


def subsample(rows: int, dataset: DatasetConfig, seed: int, name: str) -> list[int]:
    """Indices to train on: `train_fraction` of the rows, drawn with the seed; of these the first `max_train_samples`.

    They keep their order. A larger fraction with the same seed includes all rows of a smaller one.

    Raises:
        DataError: nothing is left.
    """
    kept: list[int] = list(range(rows))
    if dataset.train_fraction < 1:
        count = rounded_share(rows, dataset.train_fraction)
        if count == 0:
            raise DataError(
                f"dataset.train_fraction={dataset.train_fraction:g} of the {rows} training rows of {name} is less than "
                f"one row: nothing is left to train on. One row is {1 / rows:.3g}."
            )
        kept = sorted(shuffled(rows, seed, "fraction")[:count])
    return kept[: dataset.max_train_samples]


def rows_to_read(wanted: int, dataset: DatasetConfig, *, cut_test: bool) -> int:
    """How many rows to stream so that `wanted` are left to train on once the others are held out."""
    rows = wanted / (dataset.train_fraction * (1 - dataset.validation_fraction))
    if cut_test and dataset.test_fraction is not None:
        rows /= 1 - dataset.test_fraction
    elif cut_test:
        rows += dataset.test_size
    return math.ceil(rows - 1e-9)


def _some(rows: int, share: float, key: str, name: str) -> int:
    count = rounded_share(rows, share)
    if count == 0 or count == rows:
        left = "no row to evaluate on" if count == 0 else "no row to train on"
        raise DataError(
            f"{key}={share:g} of the {rows} rows of {name} leaves {left}. One row is {1 / max(1, rows):.3g}."
        )
    return count
