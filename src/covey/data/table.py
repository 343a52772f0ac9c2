"""Tables of rows as they were read, with their origins, so that errors can point at them.

Arrow gives all values of a column one type. That makes floats of integers beside a float, and gives objects each
other's keys. A column of which it would change a value is JSON text in the table, marked in its field, and read again
where a row leaves it.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from covey.runlog.completions import JSON_TEXT, is_json

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa


class WrittenFloat(float):
    """A number that keeps its text: `1.50`, `6.02e23`. As `parse_float` of `json.loads` it gets that text."""

    def __repr__(self) -> str:
        return self.text

    def __init__(self, text: str) -> None:
        self.text = text


def as_text(value: Any) -> str:
    """The text of a decimal number, date or time; midnight is left out. Raises a `TypeError` of anything else."""
    if isinstance(value, decimal.Decimal | datetime.date | datetime.time | datetime.timedelta):
        return str(value).removesuffix(" 00:00:00")
    raise TypeError(f"it is of type {type(value).__name__}")


def encode(columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """An Arrow table of these columns; one of which it would change a value is JSON text.

    Raises:
        TypeError: Arrow would change a value, and JSON has no form of one.
    """
    import pyarrow as pa

    made = {name: _encoded(values) for name, values in columns.items()}
    fields = [pa.field(name, array.type, metadata=mark) for name, (array, mark) in made.items()]
    return pa.Table.from_arrays([array for array, _ in made.values()], schema=pa.schema(fields))


def _encoded(values: Sequence[Any]) -> tuple[pa.Array, dict[bytes, bytes] | None]:
    import pyarrow as pa

    try:
        array = pa.array(values)
        same = (repr(now) == repr(value) for now, value in zip(array.to_pylist(), values, strict=True))
        if pa.types.is_string(array.type) or all(same):
            return array, None
    except (pa.ArrowException, OverflowError):
        pass
    texts = map(_json, values)
    return pa.array([None if text == "null" else text for text in texts], pa.string()), JSON_TEXT


def _json(value: Any) -> str:
    """JSON text, in which numbers keep theirs."""
    if isinstance(value, WrittenFloat):
        return value.text
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return f"{{{', '.join(f'{json.dumps(key)}: {_json(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_json, value))}]"
    return json.dumps(value, default=as_text)


def dataset_of(table: pa.Table) -> datasets.Dataset:
    """The rows of a table, whose columns of JSON text stay marked where the library changes a type: categories, which
    are text to it."""
    import datasets
    import pyarrow as pa

    rows = datasets.Dataset(table)
    made = rows.data.schema
    if all(is_json(made.field(one.name)) == is_json(one) for one in table.schema):
        return rows
    fields = [made.field(one.name).with_metadata(one.metadata) for one in table.schema]
    return datasets.Dataset(pa.Table.from_arrays(rows.data.columns, schema=pa.schema(fields)))


def decode(texts: Iterable[str | None], number: Callable[[str], float] = float) -> list[Any]:
    """The values of a column of JSON text."""
    return [None if text is None else json.loads(text, parse_float=number) for text in texts]


def from_arrow(table: pa.Table) -> pa.Table:
    """A table that others wrote.

    Floats of 16 and 32 bits become those of the text that they stand for (0.1, not 0.10000000149011612), JSON values,
    which the datasets library rounds, what their text says, and maps lists of pairs; but not beside bytes, say, which
    JSON could not hold.
    """
    for at, field in enumerate(table.schema):
        if _reads_wrong(field.type):
            with suppress(TypeError):  # it holds bytes too, say, which only Arrow has
                one = encode({field.name: [_value(value, field.type) for value in table.column(at).to_pylist()]})
                table = table.set_column(at, one.field(0), one.column(0))
    return table


def combine(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of several tables as one; a column that a table lacks is null.

    Raises:
        TypeError: as `encode`.
    """
    import pyarrow as pa

    found = []
    for name in dict.fromkeys(name for table in tables for name in table.column_names):
        parts = [
            table.select([name]) if name in table.column_names else pa.table({name: pa.nulls(table.num_rows)})
            for table in tables
        ]
        fields = [part.field(0) for part in parts if not pa.types.is_null(part.field(0).type)]
        if len({(field.type, is_json(field)) for field in fields}) > 1:
            lists = [part.column(0).to_pylist() for part in parts]
            marked = [is_json(part.field(0)) for part in parts]
            values = (decode(one, WrittenFloat) if mark else one for one, mark in zip(lists, marked, strict=True))
            found.append(encode({name: [value for part in values for value in part]}))
        else:
            schema = pa.schema(fields[:1] or [pa.field(name, pa.null())])
            found.append(pa.concat_tables([part.cast(schema) for part in parts]))
    return pa.Table.from_arrays([one.column(0) for one in found], schema=pa.schema([one.field(0) for one in found]))


def reading(data: datasets.Dataset) -> datasets.Dataset:
    """The rows, whose columns of JSON text are read as values."""
    texts = frozenset(field.name for field in data.data.schema if is_json(field))
    return data.with_transform(partial(_decoded, names=texts)) if texts else data


def _decoded(batch: dict[str, list[Any]], names: Collection[str]) -> dict[str, list[Any]]:
    return {name: decode(values) if name in names else values for name, values in batch.items()}


def _reads_wrong(kind: pa.DataType) -> bool:
    import pyarrow as pa

    narrow = pa.types.is_float16(kind) or pa.types.is_float32(kind) or isinstance(kind, pa.JsonType)
    return narrow or pa.types.is_map(kind) or any(_reads_wrong(kind.field(i).type) for i in range(kind.num_fields))


def _value(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if value is None:
        return None
    if isinstance(kind, pa.JsonType):
        return json.loads(value)
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return float(str(kind.to_pandas_dtype()(value)))
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return [(key, _value(item, kind.item_type)) for key, item in value]
    return value


def _field(value: Any, path: str) -> Any:
    """A field of an object, or of one inside it; a name may have dots of its own."""
    name, _, rest = path.partition(".")
    found = value if isinstance(value, dict) else {}
    return found.get(path) if path in found or not rest else _field(found.get(name), rest)


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
        """Fields of columns that hold objects, as `column.field`, and theirs, as `column.field.field`."""
        import pyarrow as pa

        schema = self.data.data.schema

        def fields(name: str, kind: pa.DataType) -> Iterator[str]:
            for inner in kind if pa.types.is_struct(kind) else ():
                yield from (f"{name}.{inner.name}", *fields(f"{name}.{inner.name}", inner.type))

        def keys(name: str, values: Iterable[Any]) -> Iterator[str]:
            objects = [value for value in values if isinstance(value, dict)]
            for key in dict.fromkeys(key for value in objects for key in value):
                yield from (f"{name}.{key}", *keys(f"{name}.{key}", (value.get(key) for value in objects)))

        found = [name for entry in schema for name in fields(entry.name, entry.type)]
        return found + [one for field in schema if is_json(field) for one in keys(field.name, self.values(field.name))]

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
        return [_field(value, column[len(outer) + 1 :]) for value in self.values(outer, number)]

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
