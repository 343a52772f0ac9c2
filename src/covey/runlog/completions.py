"""`completions/step-000010.parquet`: the completions of a step with their rewards.

A column of conversations, or of anything else than text, numbers or booleans, is stored as JSON and decoded on reading.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.errors import RunDirectoryError
from covey.runlog.directory import RunDirectory
from covey.runlog.files import parse_json, writable, write_atomically
from covey.runlog.names import STEP

if TYPE_CHECKING:
    import pyarrow as pa


_FILE = re.compile(r"step-(\d+)\.parquet")
JSON_TEXT = {b"covey": b"json"}
"""Metadata of a column that holds JSON text."""


def is_json(field: pa.Field) -> bool:
    """Whether a column holds JSON text."""
    return bool(field.metadata and field.metadata.items() >= JSON_TEXT.items())


def write_completions(directory: Path, step: int, columns: Mapping[str, Sequence[Any]]) -> Path:
    """Write the completions of one step, replacing existing ones.

    Args:
        directory: the run's `completions` folder; created if missing.
        step: their training step; becomes a column.
        columns: equally long columns by name (`runlog.names` has the usual ones).

    Returns:
        The path of the file.

    Raises:
        ValueError: the columns differ in length.
        RunDirectoryError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of completions differ in length: {lengths}")
    rows = next(iter(lengths.values()), 0)
    fields, arrays = [pa.field(STEP, pa.int64())], [pa.array([step] * rows, pa.int64())]
    for name, column in columns.items():
        plain = _is_plain(column)
        # As JSON, types that it lacks (such as dates) are texts: these files are for reading only.
        texts = (None if one is None else json.dumps(one, ensure_ascii=False, default=str) for one in column)
        values = list(column if plain else texts)
        arrays.append(pa.array([writable(value) if isinstance(value, str) else value for value in values]))
        fields.append(pa.field(writable(name), arrays[-1].type, metadata=None if plain else JSON_TEXT))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), sink, compression="zstd")
    path = directory / f"step-{step:06d}.parquet"
    with RunDirectory(directory.parent).guard(f"completions/{path.name}"):
        write_atomically(path, sink.getvalue().to_pybytes())
    return path


def read_completions(source: Path) -> list[dict[str, Any]]:
    """Read the completions of one file, or of a folder in order of the steps: one mapping per completion. Raises a
    `RunDirectoryError` if there is no such file or folder, or a file is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not source.exists():
        raise RunDirectoryError(
            f"{source} does not exist. Completions are in the folder completions of a run directory; a run with "
            "logging.completions_every_steps=0 writes none."
        )
    rows: list[dict[str, Any]] = []
    for path in [path for _, path in completion_files(source)] if source.is_dir() else [source]:
        with _damage_reported(path):
            table = pq.read_table(pa.BufferReader(path.read_bytes()))
            coded = [field.name for field in table.schema if is_json(field)]
            rows += [row | {name: row[name] and parse_json(row[name]) for name in coded} for row in table.to_pylist()]
    return rows


def count_completions(path: Path) -> int:
    """The number of completions in a file, from its footer. Raises a `RunDirectoryError` if the file is damaged."""
    import pyarrow.parquet as pq

    with _damage_reported(path):
        return int(pq.read_metadata(path).num_rows)


@contextlib.contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """Turn every error of a damaged file (footer, compressed pages, text, JSON) into a RunDirectoryError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise RunDirectoryError(
            f"{path} is not a complete Parquet file ({problem}). Delete it and try again."
        ) from error


def drop_completions_after(directory: Path, step: int) -> None:
    """Delete the completions of later steps, which a run that resumes from `step` generates again."""
    for later, path in completion_files(directory):
        if later > step:
            path.unlink()


def completion_files(directory: Path) -> list[tuple[int, Path]]:
    """The files of a `completions` folder with their steps, in ascending order."""
    if not directory.is_dir():
        return []
    named = ((_FILE.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((int(name.group(1)), path) for name, path in named if name and path.is_file())


def _is_plain(column: Sequence[Any]) -> bool:
    kinds = {type(value) for value in column if value is not None}
    if kinds <= {int, float}:
        return all(not isinstance(value, int) or abs(value) < 2**53 for value in column)  # exact as float64
    return kinds in ({str}, {bool})
