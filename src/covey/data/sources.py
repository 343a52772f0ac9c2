"""Reading problems from local files, folders that `save_to_disk` wrote, Kaggle, or the hub, by split.

Datasets on the hub are read whole or, with streaming, only as far as needed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.data.columns import RowNeeds
from covey.data.files import READABLE, find_path, listing, read_files, scan_folder
from covey.data.holdout import rows_to_read
from covey.data.table import Origin, SourceRows, Table, dataset_of, from_arrow
from covey.errors import DataError, one_line
from covey.hub import KAGGLE, check_connection_once, download_dataset

if TYPE_CHECKING:
    import datasets

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
        return _read_hub(dataset, notes, needs)
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
        return _read_hub_source(source, key, dataset)
    path = _locate(source.path, f"{key}.path")
    return _one_split(path, f"{key}.path", source.split, source.config, notes, strict=True)


def _is_saved(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`: one set of rows, or several splits."""
    return (path / "dataset_dict.json").is_file() or all(
        (path / name).is_file() for name in ("state.json", "dataset_info.json")
    )


def _load_saved(path: Path, key: str, split: str) -> tuple[dict[str, Any], bool]:
    """The splits of a saved folder by name, and whether it had splits at all; without, its rows are called `split`."""
    import datasets

    try:
        data = datasets.load_from_disk(str(path))
    except Exception as error:  # Arrow, JSON and the file system each raise their own errors
        raise DataError(
            f"{key}={path}: this folder was saved by the datasets library, but cannot be read: {one_line(error)} "
            f"({type(error).__name__}). Save it again with save_to_disk."
        ) from error
    if isinstance(data, datasets.DatasetDict):
        return dict(data), True
    return {split: data}, False


_Slicer = Callable[[str], Any]
"""Reads a slice or sum of splits, such as `train[:100]` or `train+test`."""
_Reader = Callable[[Any], Any]
"""Turns a split into a `datasets.Dataset`."""


def _train_and_test(
    splits: Mapping[str, Any],
    dataset: DatasetConfig,
    name: str,
    *,
    slicer: _Slicer | None = None,
    read_train: _Reader = lambda split: split,
    read_test: _Reader = lambda split: split,
) -> SourceRows:
    """The training split and, where there is one, the test split that the config names; see `_choose_split`."""
    train = _choose_split(splits, dataset.train_split, "dataset.train_split", name, slicer=slicer, read=read_train)
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
        train, _choose_split(splits, dataset.test_split, "dataset.test_split", name, slicer=slicer, read=read_test)
    )


def _choose_split(
    splits: Mapping[str, Any],
    split: str,
    key: str,
    name: str,
    *,
    slicer: _Slicer | None = None,
    read: _Reader = lambda split: split,
) -> Table:
    """One split, which `key` names, of those of the dataset `name`; without a `slicer` no slices nor sums of splits."""
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


@dataclass(frozen=True, slots=True)
class HubSet:
    """A dataset on the hub, and the config keys that name it."""

    id: str
    config: str | None
    revision: str | None
    key: str
    """The config key that names it; empty for a benchmark."""
    path_key: str
    """The config key of a local file in its place."""
    streaming: bool = False

    @property
    def name(self) -> str:
        return f"{self.id} ({self.config})" if self.config else self.id

    def load(self, split: str | None = None) -> Any:
        """All splits by name, or one that the library reads itself. Raises a `DataError` if it cannot be loaded."""
        import datasets

        check_connection_once()
        streaming = {"streaming": True} if self.streaming else {}
        try:
            return datasets.load_dataset(self.id, name=self.config, revision=self.revision, split=split, **streaming)
        except Exception as error:  # datasets, huggingface_hub and the network each raise their own errors
            raise self._error(error, split) from error

    def first_rows(self, split: Any, count: int) -> datasets.Dataset:
        """The first rows of a streamed split, as many as there are up to `count`."""
        import datasets

        try:
            return datasets.Dataset.from_list(list(islice(iter(split), count)), features=split.features)
        except Exception as error:  # the same errors, while rows are read
            raise self._error(error, None) from error

    def _error(self, error: Exception, split: str | None) -> DataError:
        asked = [f"{self.key}={self.id}" if self.key else self.id]
        asked += [f"{key}={value}" for key in ("config", "revision") if (value := getattr(self, key))]
        asked += [f"split={split}"] if split else []
        return DataError(
            f"The dataset {' '.join(asked)} could not be loaded from the hub: {one_line(error)} "
            f"({type(error).__name__}). Check the name and the connection; or read a local copy with "
            f"{self.path_key}=FILE ({READABLE}, or a folder of these)."
        )


def _read_hub(dataset: DatasetConfig, notes: list[str], needs: RowNeeds) -> SourceRows:
    """The rows of `dataset.id`. Raises a `DataError` if the set or a split does not exist; or `streaming` is on without
    `max_train_samples`."""
    named = "" if needs.benchmark else "dataset.id"
    hub = HubSet(str(dataset.id), dataset.config, dataset.revision, named, needs.path_key, dataset.streaming)
    splits = hub.load()
    if not dataset.streaming:
        return _train_and_test(splits, dataset, hub.name, slicer=hub.load)
    _refuse_slices(dataset.train_split, dataset.test_split)
    wanted = _bound(dataset)
    has_test = dataset.test_path is not None or (dataset.test_split or "") in splits
    count = rows_to_read(wanted, dataset, cut_test=not has_test)
    found = _train_and_test(
        splits,
        dataset,
        hub.name,
        read_train=lambda split: hub.first_rows(split, count),
        read_test=lambda split: hub.first_rows(split, max(1, dataset.test_size)),
    )
    notes.append(f"{found.train.name}: the first {len(found.train)} rows were read (dataset.streaming)")
    return found


def _read_hub_source(source: MixtureSource, key: str, dataset: DatasetConfig) -> Table:
    """The rows of one dataset of a mixture; of a streamed one the first `max_train_samples`."""
    keys = f"{key}.id", f"{key}.path"
    hub = HubSet(str(source.id), source.config, source.revision, *keys, dataset.streaming)
    splits = hub.load()
    if not dataset.streaming:
        return _choose_split(splits, source.split, f"{key}.split", hub.name, slicer=hub.load)
    _refuse_slices(source.split)
    count = rows_to_read(_bound(dataset), dataset, cut_test=True)
    read = lambda split: hub.first_rows(split, count)  # noqa: E731
    return _choose_split(splits, source.split, f"{key}.split", hub.name, read=read)


def _bound(dataset: DatasetConfig) -> int:
    if dataset.max_train_samples is None:
        raise DataError("dataset.streaming=true needs a limit, dataset.max_train_samples=N: the first N rows are read.")
    return dataset.max_train_samples


def _refuse_slices(*splits: str | None) -> None:
    for split in splits:
        if split and ("[" in split or "+" in split):
            raise DataError(
                f"The split '{split}' is a slice or a sum of splits, which cannot be streamed. Name one whole split "
                "(dataset.max_train_samples limits its rows), or set dataset.streaming=false."
            )


def _locate(text: str, key: str) -> Path:
    return download_dataset(text, key) if text.startswith(KAGGLE) else find_path(text, key)


def _local(path: Path, dataset: DatasetConfig, notes: list[str], needs: RowNeeds) -> SourceRows:
    key = needs.path_key
    if not path.is_dir():
        return SourceRows(read_files([path], key), None, f"{key} is one file")
    if _is_saved(path):
        splits, named = _load_saved(path, key, dataset.train_split)
        if named:
            return _train_and_test(splits, dataset, str(path))
        train = _choose_split(splits, dataset.train_split, key, str(path))
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
    if path.is_dir() and _is_saved(path):
        splits, _ = _load_saved(path, key, split)
        only = next(iter(splits)) if len(splits) == 1 and not strict else split
        return _choose_split(splits, only, key, str(path))
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
