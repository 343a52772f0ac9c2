"""Datasets on the Hugging Face hub, read whole or, with streaming, only as far as needed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from covey.data.holdout import rows_to_read
from covey.data.needs import RowNeeds
from covey.data.sources.files import READABLE
from covey.data.sources.splits import choose_split, train_and_test
from covey.data.table import SourceRows, Table
from covey.errors import DataError, one_line
from covey.hub import check_connection_once

if TYPE_CHECKING:
    import datasets

    from covey.config import DatasetConfig, MixtureSource


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


def read_hub(dataset: DatasetConfig, notes: list[str], needs: RowNeeds) -> SourceRows:
    """The rows of `dataset.id`. Raises a `DataError` if the set or a split does not exist; or `streaming` is on without
    `max_train_samples`."""
    named = "" if needs.benchmark else "dataset.id"
    hub = HubSet(str(dataset.id), dataset.config, dataset.revision, named, needs.path_key, dataset.streaming)
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
    """The rows of one dataset of a mixture; of a streamed one the first `max_train_samples`."""
    keys = f"{key}.id", f"{key}.path"
    hub = HubSet(str(source.id), source.config, source.revision, *keys, dataset.streaming)
    splits = hub.load()
    if not dataset.streaming:
        return choose_split(splits, source.split, f"{key}.split", hub.name, slicer=hub.load)
    _refuse_slices(source.split)
    count = rows_to_read(_bound(dataset), dataset, cut_test=True)
    read = lambda split: hub.first_rows(split, count)  # noqa: E731
    return choose_split(splits, source.split, f"{key}.split", hub.name, read=read)


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
