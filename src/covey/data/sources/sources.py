"""Reading problems from local files and folders, Kaggle, or the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from covey.data.needs import RowNeeds
from covey.data.sources import kaggle
from covey.data.sources.files import READABLE, find_path, listing, read_files, scan_folder
from covey.data.sources.hub import read_hub, read_hub_source
from covey.data.sources.saved import is_saved, load_saved
from covey.data.sources.splits import choose_split, train_and_test
from covey.data.table import SourceRows, Table
from covey.errors import DataError

if TYPE_CHECKING:
    from covey.config import DatasetConfig, MixtureSource


def read_rows(dataset: DatasetConfig, notes: list[str], needs: RowNeeds) -> SourceRows:
    """Read the rows of `dataset.path`, else of `dataset.id`; held-out ones from `dataset.test_path` if that is set.

    Args:
        dataset: which data and which splits of it.
        notes: messages for the user are appended to it.
        needs: what names the rows, for messages.

    Raises:
        DataError: the data cannot be found or read.
    """
    if not dataset.path:
        return read_hub(dataset, notes, needs)
    path = _locate(dataset.path, needs.path_key)
    found = _local(path, dataset, notes, needs)
    if dataset.test_path is None:
        return found
    test_path = _locate(dataset.test_path, "dataset.test_path")
    if test_path.resolve() == path.resolve():
        raise DataError(
            f"dataset.path and dataset.test_path are the same ({test_path}), so the model would be tested on its "
            "training data. Leave test_path out: held-out problems are then taken from dataset.path."
        )
    split = dataset.test_split or "test"
    test = _one_split(test_path, "dataset.test_path", split, dataset.config, notes, strict=False)
    return SourceRows(found.train, test)


def read_source(source: MixtureSource, key: str, dataset: DatasetConfig, notes: list[str]) -> Table:
    """Read one dataset of a mixture.

    Args:
        source: which data, and which split of it.
        key: its config key, `dataset.mixture.datasets[0]`.
        dataset: whether datasets are streamed.
        notes: messages for the user are appended to it.

    Raises:
        DataError: the data cannot be found or read.
    """
    if source.path is None:
        return read_hub_source(source, key, dataset)
    path = _locate(source.path, f"{key}.path")
    return _one_split(path, f"{key}.path", source.split, source.config, notes, strict=True)


def _locate(text: str, key: str) -> Path:
    return kaggle.download(text, key) if text.startswith(kaggle.PREFIX) else find_path(text, key)


def _local(path: Path, dataset: DatasetConfig, notes: list[str], needs: RowNeeds) -> SourceRows:
    key = needs.path_key
    if not path.is_dir():
        return SourceRows(read_files([path], key), None, f"{key} is one file")
    if is_saved(path):
        splits, named = load_saved(path, key, dataset.train_split)
        if named:
            return train_and_test(splits, dataset, str(path))
        train = choose_split(splits, dataset.train_split, key, str(path))
        return SourceRows(train, None, f"{path} was saved without splits")
    apart = dataset.test_path is not None  # then test_split refers to that path
    test_split = "test" if apart else dataset.test_split
    folder = scan_folder(path, key, train=dataset.train_split, test=test_split, config=dataset.config)
    _note_unread(path, folder.left_out + (folder.test if apart else []), folder.unread, notes)
    train = read_files(folder.train, key)
    if apart or not folder.test:
        return SourceRows(train, None, f"no file in {path} is the test split by its name")
    return SourceRows(train, read_files(folder.test, key))


def _one_split(path: Path, key: str, split: str, config: str | None, notes: list[str], *, strict: bool) -> Table:
    """The rows of a file, or of one split of a folder; without `strict`, a folder's only split may have any name."""
    if path.is_dir() and is_saved(path):
        splits, _ = load_saved(path, key, split)
        only = next(iter(splits)) if len(splits) == 1 and not strict else split
        return choose_split(splits, only, key, str(path))
    files = [path]
    if path.is_dir():
        folder = scan_folder(path, key, train=split, test=None if split == "test" else "test", config=config)
        files = folder.train
        _note_unread(path, folder.left_out + folder.test, folder.unread, notes)
    return read_files(files, key)


def _note_unread(path: Path, of_other_splits: list[Path], others: list[str], notes: list[str]) -> None:
    if of_other_splits:
        notes.append(f"not read, because they are files of other splits: {', '.join(map(str, of_other_splits))}")
    if others:
        notes.append(
            f"not read in {path}: {listing(others)}. Covey reads {READABLE}, directly in a folder and in subfolders "
            "that are called like a split"
        )
