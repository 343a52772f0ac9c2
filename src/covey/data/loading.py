"""The way in: a dataset config and a seed become training rows and held-out sets."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.data.columns import Prepared, find_columns, prepare
from covey.data.sources import Found, arithmetic_sets, find_rows
from covey.data.table import Table
from covey.errors import DataError

if TYPE_CHECKING:
    import datasets

    from covey.config import DatasetConfig

TASKS = ("arithmetic",)

_HELD_OUT_SHARE = 5  # at most one row in so many is held out when the held-out problems are cut from the training rows


@dataclass(frozen=True, slots=True)
class LoadedData:
    """What a run trains on and is measured on. Every row has `prompt` (a conversation) and `answer` (text)."""

    train: datasets.Dataset
    evaluation: dict[str, datasets.Dataset]
    """Held-out sets by name: `test`, and for arithmetic `hard`."""
    notes: list[str]
    """What the user should know about how the data was read."""


def load(dataset: DatasetConfig, seed: int) -> LoadedData:
    """Load what `dataset` names; the same for the same files, config and seed.

    Args:
        dataset: the config group `dataset`. `path` beats `id`, and both beat `task`.
        seed: draws the problems of a built-in task, and chooses the held-out rows of other data.

    Returns:
        Training rows, held-out sets, and notes.

    Raises:
        DataError: the data cannot be found, read, or used as it is.
    """
    if not dataset.path and not dataset.id:
        if dataset.task not in TASKS:
            raise DataError(
                f"dataset.task={dataset.task}: there is no such built-in task; there is {', '.join(TASKS)}. Other data "
                "comes from dataset.path (a file or folder) or dataset.id (a data set on the hub)."
            )
        train, evaluation = arithmetic_sets(dataset, seed)
        return LoadedData(train, evaluation, [])
    notes: list[str] = []
    found = find_rows(dataset, notes)
    find_columns(found.train, dataset)  # before the rows are counted: wrong columns are the likelier mistake
    train_rows, test_rows = _split(found, dataset, seed, notes)
    if dataset.max_train_samples is not None and dataset.max_train_samples < len(train_rows):
        train_rows = train_rows.select(range(dataset.max_train_samples))
    prepared = prepare(train_rows, dataset, notes)
    if test_rows is None:
        return LoadedData(prepared.data, {}, list(dict.fromkeys(notes)))
    held_out = prepare(test_rows, dataset, notes)
    _note_repeats(prepared, held_out, notes)
    return LoadedData(prepared.data, {"test": held_out.data}, list(dict.fromkeys(notes)))


def _split(found: Found, dataset: DatasetConfig, seed: int, notes: list[str]) -> tuple[Table, Table | None]:
    """Training rows in their own order, and the held-out rows in an order drawn from the seed."""
    if dataset.test_size == 0:
        return found.train, None
    if found.test is not None:
        drawn = _shuffled(len(found.test), seed)[: dataset.test_size]
        return found.train, found.test.select(drawn)
    rows = len(found.train)
    if rows < 2:
        raise DataError(
            f"{found.train.name} has only one row. At least two are needed: one to train on, and one held out to "
            "measure on (or dataset.test_size=0)."
        )
    drawn = _shuffled(rows, seed)[: max(1, min(dataset.test_size, rows // _HELD_OUT_SHARE))]
    chosen = set(drawn)
    notes.append(
        f"{len(drawn)} of the {rows} rows of {found.train.name} are held out for measuring, because {found.why_no_test}"
    )
    return found.train.select([i for i in range(rows) if i not in chosen]), found.train.select(drawn)


def _shuffled(count: int, seed: int) -> list[int]:
    order = list(range(count))
    random.Random(f"covey-data-{seed}").shuffle(order)
    return order


def _note_repeats(train: Prepared, held_out: Prepared, notes: list[str]) -> None:
    known = set(train.questions)
    repeats = sum(question in known for question in held_out.questions)
    if repeats:
        notes.append(
            f"{repeats} of the {len(held_out.questions)} held-out problems also stand in the training rows, word for "
            "word: the model may know them by heart"
        )
