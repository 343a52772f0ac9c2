"""The data of the study: measurements, gathered in one Parquet file from which the tables and pictures are made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from arms import STARTS, STEPS, TASKS, runs
from measure import measurements, start_measured

Key = tuple[str, str, int, int, float]
"""Task, arm, seed, step, temperature. A start has the arm `start`, its number as the seed, and step 0."""
Counts = Sequence[tuple[int, int, int, Sequence[int]]]
"""See `measure.measure`."""
START = "start"
_HASH, _CHANCE = b"preregistration_sha256", b"chance"
_COLUMNS = ("right", "completions", "modes", "right_by_mode")


@dataclass(frozen=True, slots=True)
class Data:
    """All that was measured."""

    preregistration: str
    """The SHA-256 of the text that the runs were made under."""
    problems: dict[Key, Counts] = field(default_factory=dict)
    chance: dict[str, dict[str, float]] = field(default_factory=dict)
    """What random well-formed answers reach, by task: Covey's names of the figures, such as `chance/pass@8`."""

    @property
    def runs(self) -> set[tuple[str, str, int]]:
        """Task, arm and seed of the runs of which the last checkpoint is measured."""
        return {key[:3] for key in self.problems if key[3] == STEPS}


def collect(output: Path, preregistration: str) -> Data:
    """The measurements of the starts and of every run of which all are there."""
    found = Data(preregistration)
    for task in TASKS:
        for start in STARTS:
            if (file := start_measured(output, task, start)).is_file():
                content = json.loads(file.read_text(encoding="utf-8"))
                found.problems[task, START, start, 0, 1.0] = content["problems"]
                found.chance[task] = content["chance"]  # of the problems, so the same for all starts
    for run in runs():
        files = measurements(output, run)
        if all(file.is_file() for *_, file in files):
            for step, temperature, file in files:
                content = json.loads(file.read_text(encoding="utf-8"))
                found.problems[run.task, run.arm.name, run.seed, step, temperature] = content["problems"]
    return found


def write_data(data: Data, file: Path) -> None:
    """One row per problem of every checkpoint, the starts among them; README.md describes the columns."""
    rows: list[dict[str, Any]] = []
    for (task, arm, seed, step, temperature), problems in data.problems.items():
        own = {"task": task, "arm": arm, "seed": seed, "step": step, "temperature": temperature}
        rows += [
            {**own, "problem": number, **dict(zip(_COLUMNS, problem, strict=True))}
            for number, problem in enumerate(problems)
        ]
    table = pa.Table.from_pylist(rows)
    pq.write_table(
        table.replace_schema_metadata({_HASH: data.preregistration, _CHANCE: json.dumps(data.chance)}),
        file,
        compression="zstd",
    )


def read_data(file: Path) -> Data:
    """What `write_data` wrote."""
    table = pq.read_table(file)
    found = Data(table.schema.metadata[_HASH].decode(), chance=json.loads(table.schema.metadata.get(_CHANCE, b"{}")))
    by_key: dict[Key, dict[int, tuple[int, int, int, Sequence[int]]]] = {}
    for row in table.to_pylist():
        key = (row["task"], row["arm"], row["seed"], row["step"], row["temperature"])
        by_key.setdefault(key, {})[row["problem"]] = tuple(row[column] for column in _COLUMNS)
    found.problems.update({key: [one for _, one in sorted(rows.items())] for key, rows in by_key.items()})
    return found
