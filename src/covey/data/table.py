"""Rows as they were read, which still know where they stood, so that an error can point at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, slots=True)
class Origin:
    """One file, or one split of a data set on the hub."""

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
    mixed: Mapping[str, str] = field(default_factory=dict)
    """Columns that were kept as JSON text because their rows are of several kinds, each with the kinds."""
    rows: Sequence[int] | None = None
    """Which rows of the origins these are; None: all of them."""

    def __len__(self) -> int:
        return len(self.data)

    @property
    def name(self) -> str:
        """The origins in a few words."""
        more = len(self.origins) - 1
        return self.origins[0].name + (f" (and {more} more file{'s' if more > 1 else ''})" if more else "")

    @property
    def columns(self) -> list[str]:
        return list(self.data.column_names)

    def values(self, column: str) -> list[Any]:
        """All values of one column as Python objects."""
        return list(self.data[column])

    def place(self, index: int) -> str:
        """Where a row was read: `line 7`, after the name of its file when there are several."""
        row = index if self.rows is None else self.rows[index]
        for origin in self.origins:
            if row < len(origin.numbers):
                file = f"{origin.name}, " if len(self.origins) > 1 else ""
                return f"{file}{origin.unit} {origin.numbers[row]}"
            row -= len(origin.numbers)
        raise IndexError(index)

    def select(self, indices: Sequence[int]) -> Table:
        """The rows at `indices`, in that order."""
        rows = [i if self.rows is None else self.rows[i] for i in indices]
        return Table(self.data.select(indices), self.origins, self.mixed, rows)
