"""Where problems come from: a built-in task, local files, or a data set on the hub."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.data import arithmetic
from covey.data.columns import conversation, prompt_type
from covey.data.files import find_path, one_line, read_files, scan_folder
from covey.data.table import Origin, Table
from covey.errors import DataError

if TYPE_CHECKING:
    import datasets

    from covey.config import DatasetConfig, DifficultyConfig


@dataclass(frozen=True, slots=True)
class Found:
    """Rows as a source gives them."""

    train: Table
    test: Table | None
    """None: the source has no held-out rows, they must be cut from `train`."""
    why_no_test: str = ""


def arithmetic_sets(dataset: DatasetConfig, seed: int) -> tuple[datasets.Dataset, dict[str, datasets.Dataset]]:
    """The built-in task: training problems, and the held-out sets `test` and `hard` (the longer numbers).

    Both held-out sets come from the held-out split, so no training problem of any seed is among them.
    """
    size = dataset.train_size
    if dataset.max_train_samples is not None:
        size = min(size, dataset.max_train_samples)
    normal = _difficulty(dataset.difficulty, "dataset.difficulty")
    train = _take(normal, "train", seed, size, "dataset.train_size", dataset)
    evaluation = {}
    if dataset.test_size:
        evaluation["test"] = _take(normal, "test", seed, dataset.test_size, "dataset.test_size", dataset)
    if dataset.hard_size:
        hard = _difficulty(dataset.hard_difficulty, "dataset.hard_difficulty")
        evaluation["hard"] = _take(hard, "test", seed, dataset.hard_size, "dataset.hard_size", dataset)
    return train, evaluation


def find_rows(dataset: DatasetConfig, notes: list[str]) -> Found:
    """Read the rows of `dataset.path`, else of `dataset.id`; held-out ones from `dataset.test_path` if that is set."""
    found = _local(dataset, notes) if dataset.path else _hub(dataset)
    if dataset.test_path is None:
        return found
    path = find_path(dataset.test_path, "dataset.test_path")
    if dataset.path and path.resolve() == Path(dataset.path).expanduser().resolve():
        raise DataError(
            f"dataset.path and dataset.test_path are the same ({path}), so the model would be tested on what it was "
            "trained on. Leave test_path out, and held-out problems are cut from dataset.path."
        )
    return Found(found.train, _read_path(path, "dataset.test_path", dataset, notes))


def _local(dataset: DatasetConfig, notes: list[str]) -> Found:
    path = find_path(str(dataset.path), "dataset.path")
    if not path.is_dir():
        train, more = read_files([path], "dataset.path")
        notes += more
        return Found(train, None, "dataset.path is one file")
    folder = scan_folder(
        path, "dataset.path", train=dataset.train_split, test=dataset.test_split, config=dataset.config
    )
    unread = folder.left_out + (folder.test if dataset.test_path is not None else [])
    if unread:
        notes.append(f"not read, as files of other splits: {', '.join(map(str, unread))}")
    train, more = read_files(folder.train, "dataset.path")
    notes += more
    if not folder.test or dataset.test_path is not None:
        return Found(train, None, f"no file in {path} is the test split by its name")
    test, more = read_files(folder.test, "dataset.path")
    notes += more
    return Found(train, test)


def _read_path(path: Path, key: str, dataset: DatasetConfig, notes: list[str]) -> Table:
    files = [path]
    if path.is_dir():
        split = dataset.test_split or "test"
        folder = scan_folder(path, key, train=split, test=None, config=dataset.config)
        files = folder.train
    table, more = read_files(files, key)
    notes += more
    return table


def _hub(dataset: DatasetConfig) -> Found:
    name = f"{dataset.id} ({dataset.config})" if dataset.config else str(dataset.id)
    splits = _load_hub(dataset, None)
    train = _hub_split(splits, dataset, dataset.train_split, "train_split", name)
    if dataset.test_path is not None or dataset.test_split is None:
        return Found(train, None, "dataset.test_split is not set")
    if dataset.test_split == dataset.train_split:
        raise DataError(
            f"dataset.train_split and dataset.test_split are both '{dataset.train_split}', so the model would be "
            "tested on what it was trained on. With dataset.test_split=null, held-out problems are cut from that split."
        )
    if dataset.test_split == "test" and "test" not in splits:  # the default, so not something the user insists on
        return Found(train, None, f"{name} has no split 'test' (it has {', '.join(splits)})")
    return Found(train, _hub_split(splits, dataset, dataset.test_split, "test_split", name))


def _hub_split(splits: dict[str, datasets.Dataset], dataset: DatasetConfig, split: str, key: str, name: str) -> Table:
    if split in splits:
        data = splits[split]
    elif "[" in split or "+" in split:  # a slice or a sum of splits, which the datasets library reads itself
        data = _load_hub(dataset, split)
    else:
        near = difflib.get_close_matches(split, splits, n=1)
        guess = f" Did you mean dataset.{key}={near[0]}?" if near else ""
        raise DataError(f"dataset.{key}={split}: {name} has no such split; it has {', '.join(splits)}.{guess}")
    if len(data) == 0:
        raise DataError(f"dataset.{key}={split}: this split of {name} holds no rows.")
    return Table(data, (Origin(f"{name}, split {split}", "row", range(1, len(data) + 1)),))


def _load_hub(dataset: DatasetConfig, split: str | None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(dataset.id, name=dataset.config, revision=dataset.revision, split=split)
    except Exception as error:  # the library, the hub client and the network each raise kinds of their own
        asked = [f"dataset.id={dataset.id}"]
        asked += [f"{key}={value}" for key in ("config", "revision") if (value := getattr(dataset, key))]
        asked += [f"split={split}"] if split else []
        raise DataError(
            f"The data set {' '.join(asked)} could not be loaded from the hub: {one_line(error)} "
            f"({type(error).__name__}). Check the name and the connection; or read a local copy with dataset.path=FILE "
            "(.jsonl, .json, .csv, .parquet, or a folder of these)."
        ) from error


def _difficulty(values: DifficultyConfig, key: str) -> arithmetic.Difficulty:
    try:
        return arithmetic.Difficulty(
            min_digits=values.min_digits,
            max_digits=values.max_digits,
            min_operands=values.min_operands,
            max_operands=values.max_operands,
            operators=tuple(values.operators),
            allow_negative=values.allow_negative,
        )
    except DataError as error:
        raise DataError(f"{key}: {error}") from None


def _take(
    difficulty: arithmetic.Difficulty, split: arithmetic.Split, seed: int, count: int, key: str, dataset: DatasetConfig
) -> datasets.Dataset:
    import datasets
    import pyarrow as pa

    try:
        problems = arithmetic.take(difficulty, split, seed, count, unique=split == "test")
    except DataError as error:
        raise DataError(f"{key}={count}: {error}") from None
    prompts = pa.array([conversation(problem.text, dataset) for problem in problems], prompt_type())
    answers = pa.array([str(problem.answer) for problem in problems], pa.string())
    return datasets.Dataset(pa.table({"prompt": prompts, "answer": answers}))
