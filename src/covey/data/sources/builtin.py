"""The built-in tasks as datasets: problems drawn with the run's seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covey.data.columns import Prepared
from covey.data.holdout import split_validation, subsample, without_duplicates
from covey.data.prompts import conversation, prompt_type
from covey.data.sources import arithmetic, countdown
from covey.errors import DataError

if TYPE_CHECKING:
    from covey.config import DatasetConfig, DifficultyConfig

TASKS = ("arithmetic", "countdown")


def task_sets(dataset: DatasetConfig, seed: int) -> tuple[Prepared, dict[str, Prepared]]:
    """Training problems, and the held-out sets `test`, `hard` (`dataset.hard_difficulty`) and `validation`.

    `test` and `hard` come from the held-out split of all problems, so no training problem of any seed is among them.
    `validation` is cut from the training problems, and copies of its problems leave them.

    Raises:
        DataError: there is no such task, or the difficulty has too few problems.
    """
    if dataset.task not in TASKS:
        raise DataError(
            f"dataset.task={dataset.task}: there is no such built-in task; there are {', '.join(TASKS)}. For other "
            "data, set dataset.path (a file or folder) or dataset.id (a dataset on the hub)."
        )
    plain = dataset.train_fraction == 1 and not dataset.validation_fraction
    size = dataset.train_size
    if plain and dataset.max_train_samples is not None:
        size = min(size, dataset.max_train_samples)  # no need to draw more
    train = _draw(dataset, dataset.difficulty, "train", seed, size, "dataset.train_size", "dataset.difficulty")
    evaluation = {}
    for name, count, difficulty, key in (
        ("test", dataset.test_size, dataset.difficulty, "dataset.difficulty"),
        ("hard", dataset.hard_size, dataset.hard_difficulty, "dataset.hard_difficulty"),
    ):
        if count:
            evaluation[name] = _draw(dataset, difficulty, "test", seed, count, f"dataset.{name}_size", key)
    rest, chosen = split_validation(len(train), dataset, seed, f"the task {dataset.task}")
    if chosen:
        evaluation["validation"] = train.select(chosen)
        train = train.select(rest)
        train = train.select(without_duplicates(train.questions, evaluation["validation"].questions))
    if not plain:
        train = train.select(subsample(len(train), dataset, seed, f"the task {dataset.task}"))
    return train, evaluation


@dataclass(frozen=True, slots=True)
class _Row:
    text: str
    answer: str
    canonical: str
    solution: str | None = None


def _draw(
    dataset: DatasetConfig,
    values: DifficultyConfig,
    split: arithmetic.Split,
    seed: int,
    count: int,
    size_key: str,
    difficulty_key: str,
) -> Prepared:
    """Problems of one split as rows; an error begins with the key that caused it."""
    names = ("min_digits", "max_digits", "min_operands", "max_operands", "operators", "allow_negative")
    fields: dict[str, Any] = {name: getattr(values, name) for name in names}
    try:
        arithmetics = dataset.task == "arithmetic"
        difficulty = arithmetic.Difficulty(**fields) if arithmetics else countdown.CountdownDifficulty(**fields)
    except DataError as error:
        raise DataError(f"{difficulty_key}: {error}") from None
    unique = split == "test"
    try:
        if isinstance(difficulty, arithmetic.Difficulty):
            sums = arithmetic.take(difficulty, split, seed, count, unique=unique)
            rows = [_Row(problem.text, str(problem.answer), problem.canonical) for problem in sums]
        else:
            found = countdown.take(difficulty, split, seed, count, unique=unique)
            rows = [_Row(problem.text, problem.answer, problem.canonical, problem.solution) for problem in found]
    except DataError as error:
        raise DataError(f"{size_key}={count}: {error}") from None
    return _prepared(rows, dataset)


def _prepared(rows: Sequence[_Row], dataset: DatasetConfig) -> Prepared:
    import datasets
    import pyarrow as pa

    columns = {
        "prompt": pa.array([conversation(row.text, dataset) for row in rows], prompt_type()),
        "answer": pa.array([row.answer for row in rows], pa.string()),
    }
    if dataset.task == "countdown":
        columns["solution"] = pa.array([row.solution for row in rows], pa.string())
    data = datasets.Dataset(pa.table(columns))
    return Prepared(data, [row.canonical for row in rows], lambda i: f"problem {i + 1}")
