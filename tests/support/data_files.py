"""Small data files, and loading them, for the tests of data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey import data
from covey.config import DatasetConfig
from covey.errors import DataError

QA = [{"question": f"What is {i} + {i}?", "answer": f"It is\n#### {2 * i}", "level": i} for i in range(20)]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load_file(path: Path, seed: int = 0, **options: Any) -> data.LoadedData:
    return data.load(DatasetConfig(path=str(path), **options), seed)


def error_of(path: Path, **options: Any) -> str:
    """The message with which loading fails; it must be one paragraph."""
    with pytest.raises(DataError) as caught:
        load_file(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def question(row: dict[str, Any]) -> str:
    return str(row["prompt"][-1]["content"])
