"""The way in: a dataset config and a seed become training rows and held-out sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.data.builtin import task_sets
from covey.data.columns import Prepared, beginning, find_columns, prepare
from covey.data.holdout import cut_validation, shuffled, test_rows, thin_out
from covey.data.mixture import blend
from covey.data.sources import find_rows
from covey.data.table import Found, Table

if TYPE_CHECKING:
    import datasets

    from covey.config import DatasetConfig


@dataclass(frozen=True, slots=True)
class LoadedData:
    """What a run trains on and is measured on. Every row has `prompt` (a conversation) and `answer` (text)."""

    train: datasets.Dataset
    evaluation: dict[str, datasets.Dataset]
    """Held-out sets by name: `test`; `hard` for a built-in task; `validation` when a share is held out for it."""
    notes: list[str]
    """What the user should know about how the data was read."""


def load(dataset: DatasetConfig, seed: int) -> LoadedData:
    """Load what `dataset` names; the same for the same files, config and seed.

    Held-out rows are taken first (`test`, then `validation`); of the others `train_fraction`, and of these the first
    `max_train_samples`, are trained on.

    Args:
        dataset: the config group `dataset`. `path` beats `id` and `task`.
        seed: draws the problems of a built-in task, and chooses the held-out rows of other data. How a mixture is
            blended goes by its own seed.

    Returns:
        Training rows, held-out sets, and notes.

    Raises:
        DataError: the data cannot be found, read, or used as it is.
    """
    notes: list[str] = []
    if dataset.mixture.datasets:
        train, evaluation = blend(dataset, seed, notes)
    elif dataset.path or dataset.id:
        train, evaluation = _read(dataset, seed, notes)
    else:
        train, evaluation = task_sets(dataset, seed)
    for name, held_out in evaluation.items():
        _note_repeats(train, held_out, name, notes)
    sets = {name: rows.data for name, rows in evaluation.items()}
    return LoadedData(train.data, sets, list(dict.fromkeys(notes)))


def _read(dataset: DatasetConfig, seed: int, notes: list[str]) -> tuple[Prepared, dict[str, Prepared]]:
    found = find_rows(dataset, notes)
    find_columns(found.train, dataset)  # before the rows are counted: wrong columns are the likelier mistake
    train, test = _cut_test(found, dataset, seed, notes)
    stay, chosen = cut_validation(len(train), dataset, seed, train.name)
    kept = thin_out(len(stay), dataset, seed, train.name)
    wanted = train if len(kept) == len(train) else train.select([stay[i] for i in kept])
    prepared = prepare(wanted, dataset, notes)
    evaluation = {}
    if test is not None:
        evaluation["test"] = prepare(test, dataset, notes)
    if chosen:
        evaluation["validation"] = prepare(train.select(chosen), dataset, notes)
    return prepared, evaluation


def _cut_test(found: Found, dataset: DatasetConfig, seed: int, notes: list[str]) -> tuple[Table, Table | None]:
    """Training rows in their own order, and the held-out rows in an order drawn from the seed."""
    if found.test is not None:
        if dataset.test_fraction is not None:
            notes.append(
                f"dataset.test_fraction={dataset.test_fraction:g} is not used, because there is a test split; "
                "dataset.test_size bounds it"
            )
        if dataset.test_size == 0:
            return found.train, None
        return found.train, found.test.select(shuffled(len(found.test), seed)[: dataset.test_size])
    rows = len(found.train)
    count = test_rows(rows, dataset, found.train.name)
    if count == 0:
        return found.train, None
    drawn = shuffled(rows, seed)[:count]
    chosen = set(drawn)
    notes.append(
        f"{count} of the {rows} rows of {found.train.name} are held out for measuring, because {found.why_no_test}"
    )
    return found.train.select([i for i in range(rows) if i not in chosen]), found.train.select(drawn)


def _note_repeats(train: Prepared, held_out: Prepared, name: str, notes: list[str]) -> None:
    """Say how many held-out questions are trained on, white space and case aside, and show one of them."""
    first = {_folded(question): i for i, question in reversed(list(enumerate(train.questions)))}
    repeats = [i for i, question in enumerate(held_out.questions) if _folded(question) in first]
    if not repeats:
        return
    i = repeats[0]
    question = held_out.questions[i]
    notes.append(
        f"{len(repeats)} of the {len(held_out)} held-out problems ({name}) also stand in the training rows, white "
        f"space and case aside: the model may know them by heart. For example {beginning(question)} "
        f"(held out: {held_out.place(i)}; training: {train.place(first[_folded(question)])})"
    )


def _folded(question: str) -> str:
    return " ".join(question.split()).casefold()
