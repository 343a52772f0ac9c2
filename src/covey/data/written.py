"""Columns that hold their values as they were written.

Arrow gives all values of a column one type. That makes floats of integers beside a float, and gives objects each
other's keys. A column of which it would change a value is JSON text in the table, and read again where a row leaves it.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

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


def encode(values: Sequence[Any]) -> tuple[Any, bool]:
    """An Arrow array of these values, and whether it is one of JSON text.

    Raises:
        TypeError: Arrow would change a value, and JSON has no form of one.
    """
    import pyarrow as pa

    try:
        array = pa.array(values)
        same = (repr(now) == repr(value) for now, value in zip(array.to_pylist(), values, strict=True))
        if pa.types.is_string(array.type) or all(same):
            return array, False
    except (pa.ArrowException, OverflowError):
        pass
    texts = (repr(value) if isinstance(value, WrittenFloat) else json.dumps(value, default=as_text) for value in values)
    return pa.array([None if text == "null" else text for text in texts], pa.string()), True


def decode(texts: Iterable[str | None], number: Callable[[str], float] = float) -> list[Any]:
    """The values of a column of JSON text."""
    return [None if text is None else json.loads(text, parse_float=number) for text in texts]


def from_arrow(table: pa.Table) -> tuple[pa.Table, frozenset[str]]:
    """A table that others wrote, and its columns of JSON text.

    Floats of 16 and 32 bits become those of the text that they stand for (0.1, not 0.10000000149011612), JSON values,
    which the datasets library rounds, what their text says, and maps lists of pairs; but not beside bytes, say, which
    JSON could not hold.
    """
    texts = set()
    for at, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if _reads_wrong(column.type):
            try:
                array, is_json = encode([_value(value, column.type) for value in column.to_pylist()])
            except TypeError:  # it holds bytes too, say, which only Arrow has
                continue
            table = table.set_column(at, name, array)
            texts |= {name} if is_json else set()
    return table, frozenset(texts)


def combine(parts: Sequence[tuple[pa.Table, Collection[str]]]) -> tuple[pa.Table, frozenset[str]]:
    """The rows of several tables, each with its columns of JSON text, as one; a column that a table lacks is null.

    Raises:
        TypeError: as `encode`.
    """
    import pyarrow as pa

    columns, texts = {}, set()
    for name in dict.fromkeys(name for table, _ in parts for name in table.column_names):
        found = [
            (table.column(name) if name in table.column_names else pa.nulls(table.num_rows), name in in_json)
            for table, in_json in parts
        ]
        kinds = {(column.type, in_json) for column, in_json in found if not pa.types.is_null(column.type)}
        if len(kinds) > 1:
            values = (decode(column.to_pylist()) if in_json else column.to_pylist() for column, in_json in found)
            columns[name], is_json = encode([value for part in values for value in part])
        else:
            kind, is_json = next(iter(kinds), (pa.null(), False))
            arrays = [array for column, _ in found for array in getattr(column, "chunks", [column])]
            columns[name] = pa.chunked_array([array.cast(kind) for array in arrays], kind)
        texts |= {name} if is_json else set()
    return pa.table(columns), frozenset(texts)


def reading(data: datasets.Dataset, texts: Collection[str]) -> datasets.Dataset:
    """The rows, whose columns of JSON text are read as values."""
    return data.with_transform(partial(_decoded, names=frozenset(texts))) if texts else data


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
