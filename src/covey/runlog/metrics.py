"""`metrics.jsonl`: one JSON object per line, one line per step, steps ascending.

Numbers are written so that they read back as the same float; what is not a number (NaN) or infinite becomes null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from covey.errors import RunDirectoryError
from covey.runlog.directory import RunDirectory
from covey.runlog.files import json_line, write_atomically
from covey.runlog.names import STEP

Value = float | int | str | bool | None
Row = dict[str, Any]
"""`step` and the values of the metrics by their names."""


class MetricsWriter:
    """Writes the rows of a run, one at a time.

    Everything added for one step becomes one row, also when part of it comes after a `flush`, or after a resume.
    """

    def __init__(self, path: Path, keep_until: int | None) -> None:
        """Open the file.

        Args:
            path: where; the run directory is made when it is not there.
            keep_until: None starts anew, whatever was there. A step keeps the rows up to and with that step, and drops
                later rows and a torn last line: what a resumed run needs in order to write no row twice.

        Raises:
            RunDirectoryError: when the file is damaged before its last line, or the disk will not have it.
        """
        self._directory = RunDirectory(path.parent)
        self._row: Row = {}
        self._changed = False
        kept = [row for row in read_metrics(path) if row[STEP] <= keep_until] if _resumes(path, keep_until) else []
        lines = [_line(row) for row in kept]
        with self._directory.guard(path.name):
            write_atomically(path, b"".join(lines))
        self._path = path
        if kept:
            self._row = kept[-1]
        self._row_start = sum(map(len, lines[:-1]))  # the byte where the row in hand begins in the file
        self._end = sum(map(len, lines))

    def add(self, step: int, values: Mapping[str, Value]) -> None:
        """Add values to a step's row. A new step writes the row before it.

        Raises:
            ValueError: for a step before the newest one.
            RunDirectoryError: when the disk will not have the row.
        """
        newest = self._row.get(STEP)
        if newest is not None and step < newest:
            raise ValueError(f"metrics came for step {step} after step {newest}")
        if step != newest:
            self._write()
            self._row = {STEP: step}
            self._row_start = self._end
        self._row.update({name: _plain(value) for name, value in values.items() if name != STEP})
        self._changed = True

    def flush(self) -> None:
        """Write the row in hand and bring it to the disk, as before a checkpoint.

        Raises:
            RunDirectoryError: when the disk will not have the row.
        """
        self._write(to_disk=True)

    def _write(self, *, to_disk: bool = False) -> None:
        if not self._changed and not to_disk:
            return
        with self._directory.guard(self._path.name), self._path.open("r+b") as file:
            if self._changed:
                line = _line(self._row)
                file.seek(self._row_start)
                file.write(line)
                file.truncate()
                file.flush()
                self._end = self._row_start + len(line)
                self._changed = False
            if to_disk:
                os.fsync(file.fileno())


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a run, also of one that is running or was killed: a torn last line is passed over.

    Raises:
        RunDirectoryError: when the file is missing, or a line before the last one is no row.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise RunDirectoryError(
            f"{path} does not exist, so there are no metrics to read. Name the directory of a run that has begun "
            "training: output_dir/run_name."
        ) from None
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _parse(line)
        if row is not None:
            rows.append(row)
        elif number < len(lines):
            raise RunDirectoryError(
                f"{path}, line {number}, is not a row of metrics (a JSON object with a step): "
                f"{line[:60].decode(errors='replace')!r}. Only the last line of a killed run may be torn, so something "
                "else has written to this file. Take that line out, or start anew with overwrite=true."
            )
    return rows


def series(rows: Iterable[Row], name: str) -> list[tuple[int, float]]:
    """The steps and values of one metric, where it has a value."""
    points = ((row[STEP], row.get(name)) for row in rows)
    return [(step, float(value)) for step, value in points if isinstance(value, int | float)]


def _resumes(path: Path, keep_until: int | None) -> bool:
    return keep_until is not None and path.exists()


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get(STEP), int) else None


def _plain(value: Any) -> Value:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    raise TypeError(f"a metric must be a number, a string or None, not {type(value).__name__}")


def _line(row: Row) -> bytes:
    return json_line(row).encode()
