"""Drawn rows: the problems of built-in tasks and of a library's, and seeds where an environment makes the prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from covey.answers import reasoning_gym
from covey.data.columns import Prepared
from covey.data.holdout import split_validation, subsample
from covey.data.prompts import conversation, prompt_column
from covey.data.tasks.arithmetic import Difficulty
from covey.data.tasks.countdown import CountdownDifficulty
from covey.data.tasks.drawing import Split, problems, take
from covey.data.tasks.graph_coloring import ColoringDifficulty
from covey.errors import DataError

if TYPE_CHECKING:
    from covey.config import DatasetConfig, DifficultyConfig


_TASKS: Mapping[str, type[Any]] = MappingProxyType(
    {"arithmetic": Difficulty, "countdown": CountdownDifficulty, "graph_coloring": ColoringDifficulty}
)
"""The difficulty of each built-in task, which draws its problems."""


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
    keys = "dataset.train_size", "dataset.difficulty"
    draw = partial(_draw, dataset, dataset.difficulty, "train", _train_size(dataset), *keys)
    evaluation, validation = dict[str, Prepared](), dict[str, Prepared]()
    train = _cut(draw, dataset, seed, validation)
    single = replace(dataset.difficulty, min_modes=1, max_modes=1)
    for name, count, difficulty, key in (
        ("test", dataset.test_size, dataset.difficulty, "dataset.difficulty"),
        ("hard", dataset.hard_size, dataset.hard_difficulty, "dataset.hard_difficulty"),
        ("single", dataset.single_size, single, "dataset.difficulty"),
    ):
        if count:
            evaluation[name] = _draw(dataset, difficulty, "test", count, f"dataset.{name}_size", key, dataset.seed)
    return train, evaluation | validation


def _train_size(dataset: DatasetConfig) -> int:
    """How many training problems to draw: with `max_train_samples` alone no more than these."""
    plain = dataset.train_fraction == 1 and not dataset.validation_fraction
    return min(dataset.train_size, dataset.max_train_samples or dataset.train_size) if plain else dataset.train_size


def _cut(
    draw: Callable[[int], Prepared], dataset: DatasetConfig, seed: int, held_out: dict[str, Prepared], name: str = ""
) -> Prepared:
    """The training problems that `draw` makes with `seed`, as few as asked for and none that is held out; `validation`,
    of those with `dataset.seed`, joins the held-out sets. Raises a `DataError` if none is left."""
    name = name or f"the task {dataset.task}"
    train = _without(draw(seed), held_out, name)
    if dataset.validation_fraction:
        pool = train if seed == dataset.seed else _without(draw(dataset.seed), held_out, name)
        _, chosen = split_validation(len(pool), dataset, name)
        held_out["validation"] = pool.select(chosen)
        train = _without(train.select(sorted(set(range(len(train))).difference(chosen))), held_out, name)
    kept = subsample(len(train), dataset, seed, name)
    return train if len(kept) == len(train) else train.select(kept)


def _without(train: Prepared, held_out: Mapping[str, Prepared], name: str) -> Prepared:
    """The training problems of which there is no copy among those held out."""
    known = {question for rows in held_out.values() for question in rows.questions}
    left = train.select([i for i, question in enumerate(train.questions) if question not in known]) if known else train
    if not len(left):
        raise DataError(
            f"All training problems of {name} are held out ({', '.join(held_out)}), as it has so few different "
            "problems. Hold out fewer, or make it harder."
        )
    return left


def _library_sets(dataset: DatasetConfig, seed: int) -> tuple[Prepared, dict[str, Prepared]]:
    evaluation = {}
    for name, count, settings in (
        ("test", dataset.test_size, dataset.settings),
        ("hard", dataset.hard_size, {**dataset.settings, **dataset.hard_settings}),
    ):
        if count:
            found = _draw_library(dataset, settings, name, count, dataset.seed)
            first = {question: i for i, question in reversed(list(enumerate(found.questions)))}
            evaluation[name] = found.select(sorted(first.values()))
    draw = partial(_draw_library, dataset, dataset.settings, "train", _train_size(dataset))
    return _cut(draw, dataset, seed, evaluation), evaluation


def _draw_library(dataset: DatasetConfig, settings: Mapping[str, Any], split: str, count: int, seed: int) -> Prepared:
    """Problems of a library's task; each split has a seed of its own."""
    import datasets
    import pyarrow as pa

    drawn_with = random.Random(f"covey-{dataset.library}-{split}-{seed}").getrandbits(31)
    found = reasoning_gym.draw(str(dataset.task), settings, drawn_with, count, f"dataset.task={dataset.task}")
    questions = [question for question, _, _ in found]
    columns = {
        "prompt": prompt_column(conversation(question, dataset) for question in questions),
        "answer": pa.array([answer for _, answer, _ in found], pa.string()),
        reasoning_gym.COLUMN: pa.array([text for _, _, text in found], pa.string()),
    }
    return Prepared(datasets.Dataset(pa.table(columns)), questions, lambda i: f"problem {i + 1}")


def task_problems(dataset: DatasetConfig, split: Split, seed: int) -> Iterator[Any]:
    """The problems of a built-in task. Raises a `DataError` if its difficulty is not possible."""
    return problems(_difficulty(dataset, dataset.difficulty, "dataset.difficulty"), split, seed)


def _difficulty(dataset: DatasetConfig, values: DifficultyConfig, key: str) -> Any:
    kind = _TASKS[str(dataset.task)]
    given = {field.name: getattr(values, field.name) for field in fields(kind)}
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except DataError as error:
        raise DataError(f"{key}: {error}") from None


def _draw(
    dataset: DatasetConfig,
    values: DifficultyConfig,
    split: Split,
    count: int,
    size_key: str,
    difficulty_key: str,
    seed: int,
) -> Prepared:
    """Problems of one split as rows; an error begins with the key that caused it."""
    import datasets
    import pyarrow as pa

    difficulty = _difficulty(dataset, values, difficulty_key)
    try:
        drawn = take(difficulty, split, seed, count, unique=split == "test")
    except DataError as error:
        raise DataError(f"{size_key}={count}: {error}") from None
    columns = {
        "prompt": prompt_column(conversation(problem.text, dataset) for problem in drawn),
        "answer": pa.array([str(problem.answer) for problem in drawn], pa.string()),
    }
    if dataset.task != "arithmetic":
        columns["solution"] = pa.array([problem.solution for problem in drawn], pa.string())
    canonical = [problem.canonical for problem in drawn]
    return Prepared(datasets.Dataset(pa.table(columns)), canonical, lambda i: f"problem {i + 1}")


_SEEDS = 2**30


def episode_sets(
    dataset: DatasetConfig, seed: int, environments: Sequence[str]
) -> tuple[Prepared, dict[str, Prepared]]:
    """`dataset.train_size` rows and, as `test`, `dataset.test_size` rows, each with another `seed`.

    Training has odd seeds and `test` even ones, so no held-out episode is trained on, whatever the seeds. Rows choose
    the environments in turn, where there are several.
    """
    evaluation = {}
    if dataset.test_size:
        evaluation["test"] = _episodes(dataset, "test", dataset.test_size, environments, dataset.seed)
    draw = partial(_episodes, dataset, "train", dataset.train_size, environments)
    return _cut(draw, dataset, seed, evaluation, "the environment's own episodes"), evaluation


def _episodes(dataset: DatasetConfig, split: str, count: int, environments: Sequence[str], seed: int) -> Prepared:
    import datasets
    import pyarrow as pa

    drawn = random.Random(f"covey-episodes-{split}-{seed}").sample(range(_SEEDS), count)
    seeds = [2 * number + (split == "train") for number in drawn]
    columns: dict[str, Any] = {"seed": pa.array(seeds, pa.int64())}
    if dataset.system_prompt or dataset.user_prompt_template:
        columns["prompt"] = prompt_column([conversation("", dataset)] * count)
    if environments:
        columns["environment"] = pa.array([environments[i % len(environments)] for i in range(count)], pa.string())
    return Prepared(datasets.Dataset(pa.table(columns)), list(map(str, seeds)), lambda i: f"episode {i + 1}")
