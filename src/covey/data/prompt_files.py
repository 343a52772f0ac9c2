"""A file of prompts to complete, read as training reads its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey.config import DatasetConfig
from covey.config.groups.dataset import DATA_FILES
from covey.config.groups.environment import EnvironmentConfig
from covey.data.columns import CONVERSATION_NAMES, PROMPT_NAMES, checked_prompts, usual_column
from covey.data.prompts import PromptBuilder, as_messages
from covey.data.sources.files import READABLE, find_path, read_files
from covey.errors import DataError

_KEY = "FILE"
"""What `covey generate` calls it."""


def read_prompts(
    name: str, column: str | None = None, environment: EnvironmentConfig | None = None
) -> list[dict[str, Any]]:
    """The rows of a file, each with its prompt, a text or messages, as `prompt`.

    Args:
        name: of a data file, as `dataset.path` takes one; any other is text with one prompt per line.
        column: the prompts' column, if there is one of this name; else it has one of the usual names.
        environment: of the model's run.

    Raises:
        DataError: the file cannot be read, or a row has no prompt.
    """
    path = find_path(name, _KEY)
    if not path.name.lower().endswith(DATA_FILES):
        return _lines(path)
    table = read_files([path], _KEY)
    found = column if column is not None and table.has(column) else usual_column(table, PROMPT_NAMES)
    if found is None:
        raise DataError(
            f"{path} has no column that looks like the prompt (one of {', '.join(PROMPT_NAMES)}); it has "
            f"{', '.join(table.columns)}. Rename one of them to prompt."
        )
    builder = PromptBuilder(DatasetConfig(), drop_reply=found.lower() in CONVERSATION_NAMES)
    values = table.values(found)
    prompts = [
        value if isinstance(value, str) and as_messages(value) is None else builder.build(value) for value in values
    ]
    checked_prompts(table, found, values, prompts, environment or EnvironmentConfig())
    columns = {name: table.values(name) for name in table.columns}
    given = ({name: values[row] for name, values in columns.items()} for row in range(len(table)))
    rows = ({name: value for name, value in row.items() if value is not None} for row in given)
    return [{**row, "prompt": prompt} for row, prompt in zip(rows, prompts, strict=True)]


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        right = f"Write one prompt per line, as UTF-8 text that is not compressed, or a file of rows: {READABLE}."
        raise DataError(f"The prompts in {path} cannot be read: {error}. {right}") from None
    rows: list[dict[str, Any]] = [{"prompt": line} for line in lines if line.strip()]
    if not rows:
        raise DataError(f"{path} holds no prompts: write one per line.")
    return rows
