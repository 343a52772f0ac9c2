"""Checking what an objective returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from covey.errors import TrainingError
from covey.rewards.workers.log_values import is_taken
from covey.runlog import names
from covey.workers.plain_data import NotPlainError, plain

_Refuse = Callable[[str], TrainingError]


def checked(
    found: Any, kind: str, mask_PG: Tensor, taken: Collection[str]
) -> tuple[Tensor | None, dict[str, float], dict[str, list[Any]]]:
    """The advantages, metrics and columns that an objective returned.

    Args:
        found: what it returned.
        kind: the name of its class, for messages.
        mask_PG: the completions that count; only their advantages have to be finite.
        taken: columns that belong to rewards.

    Returns:
        The advantages, `[P, G]` or None; the metrics; the columns, each a list of `P·G` values of plain data.

    Raises:
        TrainingError: with what cannot be used, and why.
    """

    def refuse(text: str) -> TrainingError:
        return TrainingError(f"The objective {kind} returned {text}")

    if not isinstance(found, tuple) or len(found) not in (2, 3):
        what = f"{len(found)} values" if isinstance(found, tuple) else f"a value of the type {type(found).__name__}"
        raise refuse(f"{what}; it must return (advantages, metrics) or (advantages, metrics, columns).")
    advantages_PG, metrics, *rest = found
    columns = rest[0] if rest else {}
    for what, value in (("metrics", metrics), ("columns", columns)):
        if not isinstance(value, Mapping) or not all(isinstance(name, str) and name.strip() for name in value):
            raise refuse(f"{what} that are no mapping from names to values, but {_brief(value)}.")
    if advantages_PG is not None:
        _check_advantages(advantages_PG, mask_PG, refuse)
    return (
        advantages_PG,
        {name: _number(name, value, refuse) for name, value in metrics.items()},
        {name: _column(name, value, mask_PG.shape, taken, refuse) for name, value in columns.items()},
    )


def _check_advantages(advantages_PG: Any, mask_PG: Tensor, refuse: _Refuse) -> None:
    if not isinstance(advantages_PG, Tensor):
        raise refuse(f"{_brief(advantages_PG)} as advantages; they must be a tensor, or None for TRL's.")
    if advantages_PG.shape != mask_PG.shape:
        raise refuse(
            f"advantages of shape {tuple(advantages_PG.shape)} for rewards of shape {tuple(mask_PG.shape)}; the two "
            "must be the same."
        )
    if advantages_PG.is_complex() or advantages_PG.dtype == torch.bool:
        raise refuse(f"advantages of the dtype {advantages_PG.dtype}; they must be real numbers.")
    bad = (~torch.isfinite(advantages_PG).to(mask_PG.device) & mask_PG).nonzero()
    if len(bad):
        group, completion = bad[0].tolist()
        raise refuse(
            f"{len(bad)} advantages that are not finite (NaN or infinite), the first for completion {completion} of "
            f"group {group}. Entries outside of mask_PG hold NaN rewards: leave them out of every sum and mean."
        )


def _number(name: str, value: Any, refuse: _Refuse) -> float:
    if (not name.startswith("objective/") and is_taken("log_metric", name, ())) or f"train/{name}" == names.BETA:
        raise refuse(f"the metric {name!r}, a name that Covey or TRL uses: call it objective/… .")
    try:
        number = plain(value)
    except NotPlainError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise refuse(f"the metric {name!r} with {_brief(value)}; a metric is one number.")
    return float(number)


def _column(name: str, value: Any, shape: torch.Size, taken: Collection[str], refuse: _Refuse) -> list[Any]:
    if name in taken or (is_taken("log_extra", name, ()) and name not in names.COLUMN_WEIGHTS):
        owner = "a reward has" if name in taken else "Covey has"
        raise refuse(f"the column {name!r}, a name that {owner} for a column of its own: choose another.")
    try:
        rows = plain(value)
    except NotPlainError as problem:
        raise refuse(f"the column {name!r} with {problem}; columns hold plain data.") from None
    groups, size = shape
    fits = isinstance(rows, list) and len(rows) == groups
    if not fits or not all(isinstance(row, list) and len(row) == size for row in rows):
        raise refuse(f"the column {name!r} with {_brief(value)}; it must be [{groups}, {size}], a value a completion.")
    return [None if isinstance(one, float) and math.isnan(one) else one for row in rows for one in row]


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a value of the type {type(value).__name__}" + ("" if shape is None else f" and the shape {tuple(shape)}")
