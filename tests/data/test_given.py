"""Rows given as objects: the files that they become, and messages about what is no row."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from covey.data.load import write_rows
from covey.errors import DataError

ROWS = [{"prompt": "2 + 2", "answer": "4"}, {"prompt": "3 + 4 é", "answer": "7"}]


def _read(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        tuple(ROWS),
        iter(ROWS),
        {"prompt": [row["prompt"] for row in ROWS], "answer": ["4", "7"]},
        datasets.Dataset.from_list(ROWS),
        pd.DataFrame(ROWS),
        {"train": ROWS},
    ],
    ids=["list", "tuple", "iterator", "columns", "Dataset", "DataFrame", "train"],
)
def test_every_kind_of_rows_becomes_the_same_file(tmp_path: Path, data: Any) -> None:
    found = write_rows(data, tmp_path / "out" / "_data")
    assert found.keys() == {"dataset.path"}
    assert _read(found["dataset.path"]) == ROWS
    assert write_rows(ROWS, tmp_path / "out" / "_data") == found, "the same rows have the same file"
    assert write_rows(ROWS[:1], tmp_path / "out" / "_data") != found


def test_held_out_rows_have_a_file_of_their_own(tmp_path: Path) -> None:
    splits = {"train": ROWS[:1], "test": ROWS[1:]}
    loaded = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})
    for data in (splits, loaded):
        found = write_rows(data, tmp_path)
        assert _read(found["dataset.path"]) == ROWS[:1]
        assert _read(found["dataset.test_path"]) == ROWS[1:]


def test_values_of_other_libraries_become_plain_and_missing_ones_null(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "hi"}], "n": np.int64(3), "v": np.array([1.5, 2.0])}]
    assert _read(write_rows(rows, tmp_path)["dataset.path"]) == [{**rows[0], "n": 3, "v": [1.5, 2.0]}]
    frame = pd.DataFrame({"prompt": ["a", "b"], "answer": ["1", None], "level": [1.0, float("nan")]})
    assert _read(write_rows(frame, tmp_path)["dataset.path"])[1] == {"prompt": "b", "answer": None, "level": None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("rows.jsonl", r"^data is of type str: give a list of rows such as"),
        (3, r"^data is of type int"),
        ([], r"^data has no rows"),
        (["2 + 2"], r"^data\[0\] is of type str, and a row maps columns to values"),
        ({"prompt": ["a", "b"], "answer": ["1"]}, r"^data is a mapping, but not one of columns to lists of one length"),
        ({"prompt": "a"}, r"^data is a mapping, but not one of columns"),
        ({"train": ROWS, "validation": ROWS}, r"^data has the part 'validation' besides train.*held-out ones test\.$"),
        ({"train": ROWS, "test": [3]}, r"^data\['test'\]\[0\] is of type int"),
        (
            [*ROWS, {"prompt": "a", "day": {datetime.date(2026, 1, 2)}}],
            r"^data\[2\] cannot be written as JSON \(column 'day': it is of type set\)",
        ),
        ([{"prompt": "a", "meta": [{1: "b"}]}], r"\(column 'meta': its key 1 is not text\)"),
        ([{"prompt": "half \ud83d"}], r"^data\[0\] cannot be written as JSON \(column 'prompt': .*surrogates"),
    ],
)
def test_what_is_no_row_is_said(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        write_rows(data, tmp_path)
    assert not list(tmp_path.iterdir())
