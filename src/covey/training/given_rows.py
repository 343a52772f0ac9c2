"""What rows that somebody hands to the trainer in Python must have."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from covey.data.columns import PROMPT_NAMES
from covey.errors import DataError


def check_prompts(trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Check that every data set has the column that the model is asked with, as far as it tells its columns.

    Args:
        trainer: the class of trainer that is about to be made.
        args: what it is made with; of its data sets a mapping holds several, and None is none.
        kwargs: the same, by keyword.

    Raises:
        DataError: naming the argument, what it has, and what would do.
    """
    arguments = signature(trainer).bind_partial(*args, **kwargs).arguments
    for argument in ("train_dataset", "eval_dataset"):
        given = arguments.get(argument)
        parts = {f"{argument}[{key!r}]": part for key, part in given.items()} if isinstance(given, Mapping) else {}
        for name, dataset in (parts or {argument: given}).items():
            columns = getattr(dataset, "column_names", None)
            made_later = (getattr(dataset, "format", None) or {}).get("type") == "custom"  # by set_transform, per row
            if not isinstance(columns, list) or "prompt" in columns or made_later:
                continue
            near = next((column for column in PROMPT_NAMES if column in columns), None)
            advice = (
                f'Rename the column: {name}.rename_column("{near}", "prompt").'
                if near
                else f'Add one: {name}.map(lambda row: {{"prompt": …}}), with a text or a list of messages.'
            )
            raise DataError(
                f"The rows of {name} have no column `prompt`, with which the model is asked; they have "
                f"{', '.join(map(str, columns)) or 'no columns at all'}. {advice}"
            )
