"""Rows as they were read, with their origins, so that errors can point at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from covey.data.written import WrittenFloat, dataset_of, decode, encode
from covey.runlog.completions import is_json

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, slots=True)
class Origin:
    """One file, or one split of a dataset on the hub."""

    name: str
    unit: str
    """What its rows are called: `line`, `item` or `row`."""
    numbers: Sequence[int]
    """The number of each row in that unit."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with their origins."""

    data: datasets.Dataset
    origins: tuple[Origin, ...]
    rows: Sequence[int] | None = None
    """The indices of these rows in the origins; None: all of them."""

    def __len__(self) -> int:
        return len(self.data)

    @property
    def name(self) -> str:
        """The origins, shortened."""
        more = len(self.origins) - 1
        return self.origins[0].name + (f" (and {more} more file{'s' if more > 1 else ''})" if more else "")

    @property
    def columns(self) -> list[str]:
        return list(self.data.column_names)

    @property
    def inner_columns(self) -> list[str]:
        """Fields of columns that hold objects, as `column.field`."""
        import pyarrow as pa

        schema = self.data.data.schema
        objects = [entry for entry in schema if pa.types.is_struct(entry.type)]
        found = [f"{entry.name}.{entry.type.field(i).name}" for entry in objects for i in range(entry.type.num_fields)]
        for name in (entry.name for entry in schema if is_json(entry)):
            keys = dict.fromkeys(key for value in self.values(name) if isinstance(value, dict) for key in value)
            found += [f"{name}.{key}" for key in keys]
        return found

    def has(self, column: str) -> bool:
        """Whether there is such a column, or such a field of a column (`reward_model.ground_truth`)."""
        return column in self.columns or column in self.inner_columns

    def values(self, column: str, number: Callable[[str], float] = float) -> list[Any]:
        """All values of one column, or of one field of a column, as Python objects; `number` makes floats of their
        text in a column of JSON text."""
        if column in self.columns:
            found = list(self.data[column])
            return decode(found, number) if is_json(self.data.data.schema.field(column)) else found
        outer = next(name for name in self.columns if column.startswith(name + "."))
        key = column[len(outer) + 1 :]
        return [value.get(key) if isinstance(value, dict) else None for value in self.values(outer, number)]

    def place(self, index: int) -> str:
        """Where a row was read: `line 7`, after the name of its file when there are several."""
        row = index if self.rows is None else self.rows[index]
        for origin in self.origins:
            if row < len(origin.numbers):
                file = f"{origin.name}, " if len(self.origins) > 1 else ""
                return f"{file}{origin.unit} {origin.numbers[row]}"
            row -= len(origin.numbers)
        raise IndexError(index)

    def count(self, some: int) -> str:
        """`3 of 40 rows of FILE`, for messages; it also gives how many the file has where not all are in the table."""
        there = sum(len(origin.numbers) for origin in self.origins)
        of = f"rows of {self.name}" if there == len(self) else f"rows taken from {self.name} ({there} rows)"
        return f"{some} of {len(self)} {of}"

    def select(self, indices: Sequence[int]) -> Table:
        """The rows at `indices`, in that order."""
        rows = [i if self.rows is None else self.rows[i] for i in indices]
        return replace(self, data=self.data.select(indices), rows=rows)

    def project(self, columns: Mapping[str, str]) -> Table:
        """Only these columns, under their new names; each must exist."""

        arrow = self.data.with_format("arrow")[:]
        inner = encode({name: self.values(name, WrittenFloat) for name in columns if name not in arrow.column_names})
        for field, values in zip(inner.schema, inner.columns, strict=True):
            arrow = arrow.append_column(field, values)
        return replace(self, data=dataset_of(arrow.select(list(columns)).rename_columns(list(columns.values()))))


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of a source."""

    train: Table
    test: Table | None
    """None: the source has no held-out rows; they are taken from `train`."""
    why_no_test: str = ""
