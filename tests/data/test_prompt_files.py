"""`covey generate` takes every file that training takes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from covey.data.load import read_prompts
from covey.errors import DataError

ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]
ASKED = [{"role": "user", "content": "2 + 2"}]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_every_format_and_usual_column(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    (tmp_path / "rows.csv").write_text("question,answer\n1 + 1?,2\n2 + 2?,4\n")
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    for suffix in ("jsonl", "json", "csv", "parquet"):
        rows = read_prompts(str(tmp_path / f"rows.{suffix}"))
        assert rows == [{**row, "prompt": row["question"]} for row in ROWS], suffix
    (tmp_path / "rows.txt").write_text("1 + 1?\n\n2 + 2?\n")
    assert read_prompts(str(tmp_path / "rows.txt")) == [{"prompt": "1 + 1?"}, {"prompt": "2 + 2?"}]


def test_texts_and_messages_and_the_other_columns_as_they_were_written(tmp_path: Path) -> None:
    rows = [{"prompt": "1 + 1", "secret": 50}, {"prompt": ASKED, "start": {"doors": [1, {"key": "a"}]}}]
    assert read_prompts(write(tmp_path / "rows.jsonl", rows)) == rows


def test_the_reply_that_ends_a_conversation_is_no_prompt(tmp_path: Path) -> None:
    rows = [{"messages": [*ASKED, {"role": "assistant", "content": "4"}]}]
    assert read_prompts(write(tmp_path / "rows.jsonl", rows))[0]["prompt"] == ASKED


def test_a_column_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [{"prompt": "no", "task": "yes"}])
    assert read_prompts(file, "task")[0]["prompt"] == "yes"
    assert read_prompts(file, "other")[0]["prompt"] == "no"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the file is empty"),
        ([{"text": "1 + 1"}], "no column that looks like the prompt"),
        (
            [{"prompt": "1"}, {"prompt": 5}],
            r"1 of 2 rows of .*rows.jsonl have no prompt in column 'prompt' \(line 2: 5\)",
        ),
        ([{"prompt": [{"role": "user"}]}], "line 1"),
    ],
)
def test_files_without_prompts(rows: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_prompts(write(tmp_path / "rows.jsonl", rows))


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(DataError, match=r"Did you mean rows\.jsonl\?"):
        read_prompts(str(tmp_path / "row.jsonl"))


def test_packed_text_is_told_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "p.txt.gz").write_bytes(gzip.compress(b"1 + 1?"))
    with pytest.raises(DataError, match=r"p\.txt\.gz cannot be read: .* not compressed, or a file of rows: \.jsonl"):
        read_prompts(str(tmp_path / "p.txt.gz"))
