"""`metrics.jsonl`: one JSON object per line, one line per step, steps ascending.

Floats round-trip exactly; NaN and infinities become null.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from sys import intern
from typing import Any

from covey.errors import RunDirectoryError
from covey.runlog.directory import RunDirectory
from covey.runlog.files import json_line, parse_json, plain_lines, write_atomically
from covey.runlog.names import STEP

Value = float | int | str | bool | None
Row = dict[str, Any]
"""`step`, and the metrics by name."""


class MetricsWriter:
    """Writes the rows of a run, one per step.

    All values of a step go into one row, also those added after a `flush` or a resume.
    """

    def __init__(
        self, path: Path, keep_until: int | None, *, copy: Path | None = None, logged: Sequence[Row] = ()
    ) -> None:
        """Open the file.

        Args:
            path: the file; the run directory is created if missing.
            keep_until: None replaces the file. A step keeps the rows up to and including that step, and drops later
                rows and invalid lines, so that a resumed run writes no row twice.
            copy: an intact copy of the file at that step; it takes precedence, and restores lost rows.
            logged: rows from another source, used for steps that neither file has.

        Raises:
            RunDirectoryError: the copy is damaged, or the file cannot be written.
        """
        self._directory = RunDirectory(path.parent)
        self._row: Row = {}
        self._changed = False
        self.repairs: list[str] = []
        """Restored and lost rows, one sentence each."""
        kept = [] if keep_until is None else self._kept(path, keep_until, read_metrics(copy) if copy else [], logged)
        lines = [_line(row) for row in kept]
        with self._directory.guard(path.name):
            write_atomically(path, b"".join(lines))
        self._path = path
        if kept:
            self._row = kept[-1]
        self._row_start = sum(map(len, lines[:-1]))  # the byte offset of the current row
        self._end = sum(map(len, lines))

    def _kept(self, path: Path, until: int, copied: Sequence[Row], logged: Sequence[Row]) -> list[Row]:
        found, damaged = _rows_and_damage(path) if path.is_file() else ([], {})
        rows = {row[STEP]: row for row in found if row[STEP] <= until}
        better = {row[STEP]: row for row in copied if row[STEP] <= until}
        if until in better:  # the step may have been evaluated after its checkpoint was written
            better[until] = {**rows.get(until, {}), **better[until]}
        better |= {row[STEP]: row for row in logged if row[STEP] <= until and row[STEP] not in rows | better}
        restored = sorted(step for step, row in better.items() if row != rows.get(step))
        if restored:
            self.repairs.append(
                f"{path.name} had lost or changed {len(restored)} rows (step {restored[0]} to {restored[-1]}), which "
                f"were restored from the checkpoint of step {until}"
                + (", except the results of evaluations (see evaluation/)." if logged else ".")
            )
        if damaged and not copied:
            numbers = ", ".join(map(str, damaged))
            self.repairs.append(f"{path.name} has lines that are not rows of metrics ({numbers}): they were dropped.")
        rows |= better
        return [rows[step] for step in sorted(rows)]

    def add(self, step: int, values: Mapping[str, Value]) -> None:
        """Add values to a step's row. A new step writes the row before it.

        Raises:
            ValueError: the step is before the newest one.
            RunDirectoryError: the row cannot be written.
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
        """Write the current row and sync the file to disk, as before a checkpoint. Raises a `RunDirectoryError` if the
        row cannot be written."""
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
    """Read the rows of a run, also of one that is running or was killed: an incomplete last line is skipped. Raises a
    `RunDirectoryError` if the file is missing, or a line before the last one is not a row."""
    try:
        rows, damaged = _rows_and_damage(path)
    except FileNotFoundError:
        raise RunDirectoryError(
            f"{path} does not exist, so there are no metrics to read. Name the directory of a run that has begun "
            "training: output_dir/run_name."
        ) from None
    for number, line in damaged.items():
        raise RunDirectoryError(
            f"{path}, line {number}, is not a row of metrics (a JSON object with a step): "
            f"{line.decode(errors='replace')!r}. Only the last line of a killed run may be incomplete, so something "
            "else has written to this file. Remove that line; resuming the run restores it."
        )
    return rows


def _rows_and_damage(path: Path) -> tuple[list[Row], dict[int, bytes]]:
    """The rows of a file, and the beginnings of invalid lines before the last by their numbers."""
    rows, damaged, number = list[Row](), dict[int, bytes](), 0
    for number, line in enumerate(plain_lines(path), start=1):
        row = _parse(line)
        if row is None:
            damaged[number] = line.rstrip()[:60]
        else:
            rows.append(row)
    damaged.pop(number, None)
    return rows, damaged


def series(rows: Iterable[Row], name: str) -> list[tuple[int, float]]:
    """Steps and values of one metric, without missing values."""
    points = ((row[STEP], row.get(name)) for row in rows)
    return [(step, float(value)) for step, value in points if isinstance(value, int | float)]


def _parse(line: bytes) -> Row | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get(STEP), int):
        return None
    return {intern(name): value for name, value in row.items()}  # all rows share the names, most of their memory


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
