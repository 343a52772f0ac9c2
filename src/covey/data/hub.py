"""Data sets on the Hugging Face hub, read whole or, with streaming, only as far as they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from covey.data.files import one_line
from covey.data.holdout import rows_to_read
from covey.data.splits import choose, train_and_test
from covey.data.table import Found, Table
from covey.errors import DataError

if TYPE_CHECKING:
    import datasets

    from covey.config import DatasetConfig, MixtureSource


@dataclass(frozen=True, slots=True)
class HubSet:
    """Which data set, and the config keys that named it."""

    id: str
    config: str | None
    revision: str | None
    key: str
    """The config group: `dataset` or `dataset.mixture.datasets[0]`."""
    streaming: bool = False

    @property
    def name(self) -> str:
        return f"{self.id} ({self.config})" if self.config else self.id

    def load(self, split: str | None = None) -> Any:
        """All splits by name, or one that the library reads itself.

        Raises:
            DataError: it cannot be loaded.
        """
        import datasets

        streaming = {"streaming": True} if self.streaming else {}
        try:
            return datasets.load_dataset(self.id, name=self.config, revision=self.revision, split=split, **streaming)
        except Exception as error:  # the library, the hub client and the network each raise kinds of their own
            raise self._error(error, split) from error

    def first_rows(self, split: Any, count: int) -> datasets.Dataset:
        """The first rows of a streamed split, as many as there are up to `count`."""
        import datasets

        try:
            return datasets.Dataset.from_list(list(islice(iter(split), count)), features=split.features)
        except Exception as error:  # the same kinds, now while rows come in
            raise self._error(error, None) from error

    def _error(self, error: Exception, split: str | None) -> DataError:
        asked = [f"{self.key}.id={self.id}"]
        asked += [f"{key}={value}" for key in ("config", "revision") if (value := getattr(self, key))]
        asked += [f"split={split}"] if split else []
        return DataError(
            f"The data set {' '.join(asked)} could not be loaded from the hub: {one_line(error)} "
            f"({type(error).__name__}). Check the name and the connection; or read a local copy with "
            f"{self.key}.path=FILE (.jsonl, .json, .csv, .parquet, or a folder of these)."
        )


def read_hub(dataset: DatasetConfig, notes: list[str]) -> Found:
    """The rows of `dataset.id`.

    Raises:
        DataError: the set or a split is not there; or `streaming` is on and nothing says how far to read.
    """
    hub = HubSet(str(dataset.id), dataset.config, dataset.revision, "dataset", dataset.streaming)
    splits = hub.load()
    if not dataset.streaming:
        return train_and_test(splits, dataset, hub.name, slicer=hub.load)
    _refuse_slices(dataset.train_split, dataset.test_split)
    wanted = _bound(dataset)
    has_test = dataset.test_path is not None or (dataset.test_split or "") in splits
    count = rows_to_read(wanted, dataset, cut_test=not has_test)
    found = train_and_test(
        splits,
        dataset,
        hub.name,
        read_train=lambda split: hub.first_rows(split, count),
        read_test=lambda split: hub.first_rows(split, max(1, dataset.test_size)),
    )
    notes.append(f"{found.train.name}: the first {len(found.train)} rows were read (dataset.streaming)")
    return found


def read_hub_source(source: MixtureSource, key: str, dataset: DatasetConfig) -> Table:
    """The rows of one data set of a mixture; of a streamed one the first `max_train_samples`."""
    hub = HubSet(str(source.id), source.config, source.revision, key, dataset.streaming)
    splits = hub.load()
    if not dataset.streaming:
        return choose(splits, source.split, f"{key}.split", hub.name, slicer=hub.load)
    _refuse_slices(source.split)
    count = rows_to_read(_bound(dataset), dataset, cut_test=True)
    read = lambda split: hub.first_rows(split, count)  # noqa: E731
    return choose(splits, source.split, f"{key}.split", hub.name, read=read)


def _bound(dataset: DatasetConfig) -> int:
    if dataset.max_train_samples is None:
        raise DataError(
            "dataset.streaming=true reads a data set row by row, and nothing says where to stop. Set "
            "dataset.max_train_samples=N: the first N rows are read and kept."
        )
    return dataset.max_train_samples


def _refuse_slices(*splits: str | None) -> None:
    for split in splits:
        if split and ("[" in split or "+" in split):
            raise DataError(
                f"The split '{split}' is a slice or a sum of splits, which cannot be streamed. Name one whole split "
                "(dataset.max_train_samples says how many of its rows are read), or set dataset.streaming=false."
            )
