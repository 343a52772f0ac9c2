"""Choosing splits by name, from a dataset on the hub or one saved to disk."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from covey.data.table import Origin, SourceRows, Table
from covey.data.written import dataset_of, from_arrow
from covey.errors import DataError

if TYPE_CHECKING:
    from covey.config import DatasetConfig

Slicer = Callable[[str], Any]
"""Reads a slice or sum of splits, such as `train[:100]` or `train+test`."""
Reader = Callable[[Any], Any]
"""Turns a split into a `datasets.Dataset`."""


def train_and_test(
    splits: Mapping[str, Any],
    dataset: DatasetConfig,
    name: str,
    *,
    slicer: Slicer | None = None,
    read_train: Reader = lambda split: split,
    read_test: Reader = lambda split: split,
) -> SourceRows:
    """The training split and, where there is one, the test split that the config names.

    Args:
        splits: the splits by name.
        dataset: `train_split`, `test_split` and `test_path`.
        name: of the dataset, for messages.
        slicer: see `choose_split`.
        read_train: reads the training split.
        read_test: reads the test split.

    Raises:
        DataError: a split is missing or empty, or both are the same.
    """
    train = choose_split(splits, dataset.train_split, "dataset.train_split", name, slicer=slicer, read=read_train)
    if dataset.test_path is not None or dataset.test_split is None:
        return SourceRows(train, None, "dataset.test_split is not set")
    if dataset.test_split == dataset.train_split:
        raise DataError(
            f"dataset.train_split and dataset.test_split are both '{dataset.train_split}', so the model would be "
            "tested on its training data. With dataset.test_split=null, held-out problems are taken from that split."
        )
    if dataset.test_split == "test" and "test" not in splits:  # the default, not set by the user
        return SourceRows(train, None, f"{name} has no split 'test' (it has {', '.join(splits)})")
    return SourceRows(
        train, choose_split(splits, dataset.test_split, "dataset.test_split", name, slicer=slicer, read=read_test)
    )


def choose_split(
    splits: Mapping[str, Any],
    split: str,
    key: str,
    name: str,
    *,
    slicer: Slicer | None = None,
    read: Reader = lambda split: split,
) -> Table:
    """One split as a table.

    Args:
        splits: the splits by name.
        split: which one.
        key: the config key that named it.
        name: of the dataset, for messages.
        slicer: reads slices and sums of splits; None where these are not supported.
        read: reads the split.

    Raises:
        DataError: there is no such split, or it holds no rows.
    """
    if split in splits:
        data = read(splits[split])
    elif slicer is not None and ("[" in split or "+" in split):
        data = slicer(split)
    else:
        near = difflib.get_close_matches(split, splits, n=1)
        guess = f" Did you mean {key}={near[0]}?" if near else ""
        raise DataError(f"{key}={split}: {name} has no such split; it has {', '.join(splits)}.{guess}")
    if len(data) == 0:
        raise DataError(f"{key}={split}: this split of {name} holds no rows.")

    origin = Origin(f"{name}, split {split}", "row", range(1, len(data) + 1))
    return Table(dataset_of(from_arrow(data.with_format("arrow")[:])), (origin,))
