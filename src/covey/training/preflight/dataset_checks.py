"""Checks of datasets that are passed to the trainer in Python."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from covey.data.columns import PROMPT_NAMES
from covey.errors import DataError


def check_prompts(trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Check that every dataset has a `prompt` column, if its columns are known, unless environments make the prompts.

    Args:
        trainer: the trainer's class.
        args: its arguments; a dataset may be a mapping of several, or None.
        kwargs: its keyword arguments.

    Raises:
        DataError: with the argument, its columns, and a fix.
    """
    arguments = signature(trainer).bind_partial(*args, **kwargs).arguments
    if arguments.get("environment_factory") is not None:
        return
    for argument in ("train_dataset", "eval_dataset"):
        given = arguments.get(argument)
        parts = {f"{argument}[{key!r}]": part for key, part in given.items()} if isinstance(given, Mapping) else {}
        for name, dataset in (parts or {argument: given}).items():
            columns = getattr(dataset, "column_names", None)
            computed = (getattr(dataset, "format", None) or {}).get("type") == "custom"  # by set_transform, per row
            if not isinstance(columns, list) or "prompt" in columns or computed:
                continue
            near = next((column for column in PROMPT_NAMES if column in columns), None)
            advice = (
                f'Rename the column: {name}.rename_column("{near}", "prompt").'
                if near
                else f'Add one: {name}.map(lambda row: {{"prompt": …}}), with a text or a list of messages.'
            )
            raise DataError(
                f"The rows of {name} have no column `prompt`; they have "
                f"{', '.join(map(str, columns)) or 'no columns at all'}. {advice}"
            )
