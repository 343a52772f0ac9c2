"""Checking the difficulty of a built-in task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from covey.errors import DataError


class Bounds(Protocol):
    """The common fields of the difficulties of all built-in tasks."""

    @property
    def min_digits(self) -> int: ...
    @property
    def max_digits(self) -> int: ...
    @property
    def min_operands(self) -> int: ...
    @property
    def max_operands(self) -> int: ...
    @property
    def operators(self) -> Sequence[str]: ...


def check_bounds(task: str, bounds: Bounds, *, most_digits: int, most_operands: int, operators: Sequence[str]) -> None:
    """Raise a `DataError` unless the bounds fit together and the task knows the operators."""
    if not 1 <= bounds.min_digits <= bounds.max_digits <= most_digits:
        raise DataError(
            f"min_digits={bounds.min_digits} and max_digits={bounds.max_digits} do not fit together: {task} needs "
            f"1 <= min_digits <= max_digits <= {most_digits}."
        )
    if not 2 <= bounds.min_operands <= bounds.max_operands <= most_operands:
        raise DataError(
            f"min_operands={bounds.min_operands} and max_operands={bounds.max_operands} do not fit together: {task} "
            f"needs 2 <= min_operands <= max_operands <= {most_operands}."
        )
    unknown = [operator for operator in bounds.operators if operator not in operators]
    if unknown or not bounds.operators:
        raise DataError(
            f"operators={list(bounds.operators)} is not a list of arithmetic operators: use one or more of "
            f"{', '.join(operators)}."
        )


def check_modes(least: int | None, most: int | None) -> None:
    """Raise a `DataError` if the bounds on the number of right answers do not fit together."""
    if (least or 1) < 1 or (most is not None and most < (least or 1)):
        raise DataError(f"min_modes={least} and max_modes={most} do not fit together: 1 <= min_modes <= max_modes.")
