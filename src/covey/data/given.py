"""Rows that a Python program gives: written to files, so that a run's config can name its data and the run resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covey.data.written import as_text, dataset_of, from_arrow, reading
from covey.errors import DataError
from covey.runlog.files import guard_disk, write_atomically

_NARROW = ("float16", "float32")
_KEYS = {"train": "dataset.path", "test": "dataset.test_path"}
_WANTED = (
    "give a list of rows such as {'prompt': '2 + 2', 'answer': '4'}, a mapping of columns to lists, a datasets.Dataset "
    "or a pandas.DataFrame; or {'train': …, 'test': …} of these"
)


def write_rows(data: Any, folder: Path) -> dict[str, str]:
    """Write rows to files, which are called by a hash of what they hold.

    Args:
        data: rows as mappings, a mapping of columns to lists, a `datasets.Dataset` or a `pandas.DataFrame`; or
            `{"train": …, "test": …}` of these, whose `test` is held out.
        folder: where the files are.

    Returns:
        The config keys that name the files, `dataset.path` and, with held-out rows, `dataset.test_path`.

    Raises:
        DataError: the data is something else, empty, or holds what no file of rows can hold.
        RunDirectoryError: a file cannot be written.
    """
    splits = dict(data) if isinstance(data, Mapping) and "train" in data else {"train": data}
    if unknown := [name for name in splits if name not in _KEYS]:
        raise DataError(
            f"data has the part {unknown[0]!r} besides train: the rows to train on are called train, held-out ones "
            "test."
        )
    texts = {
        name: _lines(rows, "data" if splits.keys() == {"train"} else f"data[{name!r}]") for name, rows in splits.items()
    }
    found = {}
    for name, text in texts.items():
        file = folder / f"rows-{hashlib.sha256(text).hexdigest()[:12]}.jsonl"
        found[_KEYS[name]] = str(file)
        if not file.is_file():
            with guard_disk("the rows given as data", folder, elsewhere="set output_dir to another place"):
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(file, text)
    return found


def _lines(data: Any, what: str) -> bytes:
    lines = []
    for number, row in enumerate(_rows(data, what)):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{what}[{number}] is of type {type(row).__name__}, and a row maps columns to values: {_WANTED}."
            )
        cells = []
        try:
            for column, value in row.items():
                _check_keys(value)
                cells.append(json.dumps({column: value}, ensure_ascii=False, default=_plain).encode()[1:-1])
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{what}[{number}] cannot be written as JSON (column {column!r}: {error}): values are texts, numbers, "
                "lists and mappings."
            ) from None
        lines.append(b"{" + b", ".join(cells) + b"}\n")
    if not lines:
        raise DataError(f"{what} has no rows: {_WANTED}.")
    return b"".join(lines)


def _rows(data: Any, what: str) -> Iterable[Any]:
    if hasattr(data, "to_dict") and hasattr(data, "notna"):  # a DataFrame, whose missing values are NaN
        narrow = [name for name, kind in data.dtypes.items() if str(kind) in _NARROW]
        data = data.astype(dict.fromkeys(narrow, str)).astype(dict.fromkeys(narrow, float))
        data = data.astype(object).where(data.notna(), None).to_dict("records")
    elif hasattr(data, "set_format") and data.format["type"] != "custom":  # a Dataset
        data = reading(dataset_of(from_arrow(data.with_format("arrow")[:])))
    elif isinstance(data, Mapping):
        columns = {name: list(values) for name, values in data.items() if _is_column(values)}
        if len(columns) < len(data) or len({len(values) for values in columns.values()}) != 1:
            raise DataError(f"{what} is a mapping, but not one of columns to lists of one length: {_WANTED}.")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if not _is_column(data):
        raise DataError(f"{what} is of type {type(data).__name__}: {_WANTED}.")
    rows: Iterable[Any] = data
    return rows


def _is_column(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)


def _plain(value: Any) -> Any:
    """A number or array of another library as Python's own; the text of what JSON has not."""
    if str(getattr(value, "dtype", "")).removeprefix("torch.") in _NARROW:
        import numpy as np

        return np.asarray(value).astype(str).astype(float).tolist()  # 0.1 of 32 bits is 0.1
    if hasattr(value, "tolist"):
        return value.tolist()
    return as_text(value)


def _check_keys(value: Any) -> None:
    """Refuse keys of objects that JSON would make text."""
    if isinstance(value, Mapping) and (bad := [key for key in value if not isinstance(key, str)]):
        raise TypeError(f"its key {bad[0]!r} is not text")
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _check_keys(inner)
