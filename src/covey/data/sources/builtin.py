"""The built-in tasks, and those of a library, as datasets of drawn problems."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from covey.answers import reasoning_gym
from covey.data.columns import Prepared
from covey.data.holdout import split_validation, subsample, without_duplicates
from covey.data.prompts import conversation, prompt_type
from covey.data.sources import arithmetic, countdown, graph_coloring
from covey.errors import DataError

if TYPE_CHECKING:
    from covey.config import DatasetConfig, DifficultyConfig

_TASKS: Mapping[str, tuple[Any, Any]] = MappingProxyType(
    {
        "arithmetic": (arithmetic, arithmetic.Difficulty),
        "countdown": (countdown, countdown.CountdownDifficulty),
        "graph_coloring": (graph_coloring, graph_coloring.ColoringDifficulty),
    }
)
"""The module of each built-in task, with `problems` and `take`, and the class of its difficulty."""


def task_sets(dataset: DatasetConfig, seed: int) -> tuple[Prepared, dict[str, Prepared]]:
    """Training problems, drawn with `seed`, and the held-out sets `test`, `hard` (`dataset.hard_difficulty`), `single`
    (one right answer each) and `validation`, drawn with `dataset.seed`.

    All but the last come from the held-out split of all problems, so no training problem of any seed is among them. A
    library's task has no such split: its held-out problems are of other seeds, and copies of them leave the training
    problems. `validation` is cut from the training problems of `dataset.seed`, and copies of its problems leave those
    of `seed`.

    Raises:
        DataError: there is no such task, or it has too few problems.
    """
    if dataset.library is not None:
        return _library_sets(dataset, seed)

    def draw(seed: int) -> Prepared:
        size = _train_size(dataset)
        return _draw(dataset, dataset.difficulty, "train", seed, size, "dataset.train_size", "dataset.difficulty")

    evaluation, validation = dict[str, Prepared](), dict[str, Prepared]()
    train = cut(draw, dataset, seed, validation)
    single = replace(dataset.difficulty, min_modes=1, max_modes=1)
    for name, count, difficulty, key in (
        ("test", dataset.test_size, dataset.difficulty, "dataset.difficulty"),
        ("hard", dataset.hard_size, dataset.hard_difficulty, "dataset.hard_difficulty"),
        ("single", dataset.single_size, single, "dataset.difficulty"),
    ):
        if count:
            evaluation[name] = _draw(dataset, difficulty, "test", dataset.seed, count, f"dataset.{name}_size", key)
    return train, evaluation | validation


def _train_size(dataset: DatasetConfig) -> int:
    """How many training problems to draw: with `max_train_samples` alone no more than these."""
    plain = dataset.train_fraction == 1 and not dataset.validation_fraction
    return min(dataset.train_size, dataset.max_train_samples or dataset.train_size) if plain else dataset.train_size


def cut(
    draw: Callable[[int], Prepared],
    dataset: DatasetConfig,
    seed: int,
    evaluation: dict[str, Prepared],
    name: str = "",
) -> Prepared:
    """The training problems without those of `validation`, which joins the held-out sets, and as few as asked for.

    Args:
        draw: makes training problems with a seed.
        dataset: what is cut, and the seed of `validation`.
        seed: of the training problems.
        evaluation: the held-out sets by name.
        name: of the problems in messages.
    """
    name, train = name or f"the task {dataset.task}", draw(seed)
    if dataset.validation_fraction:
        pool = train if seed == dataset.seed else draw(dataset.seed)
        _, chosen = split_validation(len(pool), dataset, name)
        evaluation["validation"] = pool.select(chosen)
        train = train.select(sorted(set(range(len(train))).difference(chosen)))
        train = train.select(without_duplicates(train.questions, evaluation["validation"].questions))
        if not len(train):
            raise DataError(
                f"dataset.validation_fraction={dataset.validation_fraction:g} of {name} holds out all its different "
                "problems, and none is left to train on. Hold out fewer, or make it harder."
            )
    kept = subsample(len(train), dataset, seed, name)
    return train if len(kept) == len(train) else train.select(kept)


def _library_sets(dataset: DatasetConfig, seed: int) -> tuple[Prepared, dict[str, Prepared]]:
    evaluation = {}
    for name, count, settings in (
        ("test", dataset.test_size, dataset.settings),
        ("hard", dataset.hard_size, {**dataset.settings, **dataset.hard_settings}),
    ):
        if count:
            found = _draw_library(dataset, settings, name, dataset.seed, count)
            first = {question: i for i, question in reversed(list(enumerate(found.questions)))}
            evaluation[name] = found.select(sorted(first.values()))

    def draw(seed: int) -> Prepared:
        train = _draw_library(dataset, dataset.settings, "train", seed, _train_size(dataset))
        for name, held_out in evaluation.items():
            train = train.select(without_duplicates(train.questions, held_out.questions))
            if not len(train):
                raise DataError(
                    f"dataset.{name}_size={len(held_out)}: the task {dataset.task} has so few different problems that "
                    "all training problems are held out. Hold out fewer, or make it harder with dataset.settings."
                )
        return train

    return cut(draw, dataset, seed, evaluation), evaluation


def _draw_library(dataset: DatasetConfig, settings: Mapping[str, Any], split: str, seed: int, count: int) -> Prepared:
    """Problems of a library's task; each split has a seed of its own."""
    import datasets
    import pyarrow as pa

    drawn_with = random.Random(f"covey-{dataset.library}-{split}-{seed}").getrandbits(31)
    found = reasoning_gym.draw(str(dataset.task), settings, drawn_with, count, f"dataset.task={dataset.task}")
    questions = [question for question, _, _ in found]
    columns = {
        "prompt": pa.array([conversation(question, dataset) for question in questions], prompt_type()),
        "answer": pa.array([answer for _, answer, _ in found], pa.string()),
        reasoning_gym.COLUMN: pa.array([text for _, _, text in found], pa.string()),
    }
    return Prepared(datasets.Dataset(pa.table(columns)), questions, lambda i: f"problem {i + 1}")


def task_problems(dataset: DatasetConfig, split: arithmetic.Split, seed: int) -> Iterator[Any]:
    """The problems of a built-in task, as its module yields them. Raises a `DataError` if its difficulty is not
    possible."""
    difficulty = _difficulty(dataset, dataset.difficulty, "dataset.difficulty")
    found: Iterator[Any] = _TASKS[str(dataset.task)][0].problems(difficulty, split, seed)
    return found


def _difficulty(dataset: DatasetConfig, values: DifficultyConfig, key: str) -> Any:
    kind = _TASKS[str(dataset.task)][1]
    given = {field.name: getattr(values, field.name) for field in fields(kind)}
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except DataError as error:
        raise DataError(f"{key}: {error}") from None


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
    task, difficulty = _TASKS[str(dataset.task)][0], _difficulty(dataset, values, difficulty_key)
    try:
        return _prepared(task.take(difficulty, split, seed, count, unique=split == "test"), dataset)
    except DataError as error:
        raise DataError(f"{size_key}={count}: {error}") from None


def _prepared(problems: Sequence[Any], dataset: DatasetConfig) -> Prepared:
    import datasets
    import pyarrow as pa

    columns = {
        "prompt": pa.array([conversation(problem.text, dataset) for problem in problems], prompt_type()),
        "answer": pa.array([str(problem.answer) for problem in problems], pa.string()),
    }
    if dataset.task != "arithmetic":
        columns["solution"] = pa.array([problem.solution for problem in problems], pa.string())
    data = datasets.Dataset(pa.table(columns))
    return Prepared(data, [problem.canonical for problem in problems], lambda i: f"problem {i + 1}")
