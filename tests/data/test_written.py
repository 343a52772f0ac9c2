"""Values reach rewards as they were written: through files, saved sets, Python, mixtures, and held-out rows."""

from __future__ import annotations

import datetime
import decimal
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from covey import data
from covey.config import DatasetConfig
from covey.config.groups.dataset import MixtureConfig
from covey.data.load import write_rows
from data_files import error_of, load_file, write_jsonl

_NUMBERS = (0, 1, -3, 2**60, 2**70, 0.5, 2.0, -0.0, 0.1 + 0.2, 1e-7, 6.02e23)


def _value(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(7 if depth else 4)
    if kind < 4:
        return (None, rng.random() < 0.5, rng.choice(_NUMBERS), rng.choice(("", "a", "1", "null", "[1]", "é\n")))[kind]
    if kind == 4:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {name: _value(rng, depth - 1) for name in rng.sample("abc1", rng.randrange(4))}


def _rows(seed: int, first: int = 0) -> list[dict[str, Any]]:
    """Rows of random JSON; the same columns, of any kinds."""
    rng = random.Random(f"rows-{seed}")
    return [
        {"prompt": f"Question {first + i}?", "answer": str(i), "meta": _value(rng), "args": [_value(rng)]}
        | {"tests": {"inputs": [_value(rng, 1)], rng.choice("xy"): _value(rng, 2)}, "level": rng.choice(_NUMBERS)}
        for i in range(6)
    ]


def _exactly(rows: Any) -> list[str]:
    """1 is not 1.0 here, and the order of keys counts."""
    return sorted(repr(dict(row)) for row in rows)


def _jsonl(folder: Path, rows: list[dict[str, Any]]) -> Path:
    return write_jsonl(folder / "rows.jsonl", rows)


def _json(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps(rows, indent=1))
    return path


def _several(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "parts").mkdir()
    for i, row in enumerate(rows):
        write_jsonl(folder / "parts" / f"{i}.jsonl", [row])
    return folder / "parts"


def _python(folder: Path, rows: list[dict[str, Any]]) -> Path:
    return Path(write_rows(rows, folder / "given")["dataset.path"])


@pytest.mark.parametrize("write", [_jsonl, _json, _several, _python])
@pytest.mark.parametrize("seed", range(5))
def test_random_rows_come_as_they_were_written(
    tmp_path: Path, seed: int, write: Callable[[Path, list[dict[str, Any]]], Path]
) -> None:
    rows = _rows(seed)
    loaded = load_file(write(tmp_path, rows), test_size=1)
    found = [*loaded.train, *loaded.evaluation["test"]]
    asked = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    assert _exactly({name: row[name] for name in asked[0]} for row in found) == _exactly(asked)
    assert not any("column" in note for note in loaded.notes)


def test_a_mixture_keeps_the_values_of_each_set(tmp_path: Path) -> None:
    first = [{"problem": f"a{i}", "answer": str(i), "meta": {"n": i}, "level": 1} for i in range(4)]
    second = [{"problem": f"b{i}", "answer": str(i), "meta": {"n": i + 0.5, "m": [i]}, "level": 1.5} for i in range(4)]
    paths = [write_jsonl(tmp_path / name, rows) for name, rows in (("a.jsonl", first), ("b.jsonl", second))]
    mixture = MixtureConfig(datasets=[{"path": str(path)} for path in paths])
    loaded = data.load(DatasetConfig(mixture=mixture, test_size=3), 0)
    every = [*loaded.train, *loaded.evaluation["test"]]
    assert _exactly({name: row[name] for name in first[0]} for row in every) == _exactly([*first, *second])


@pytest.mark.parametrize("level", [pa.array(["e"]), pa.array(["e"]).dictionary_encode()], ids=["text", "category"])
def test_files_and_sets_of_arrow_keep_the_values_of_each_part(tmp_path: Path, level: pa.Array) -> None:
    rows = [
        {"prompt": "a", "answer": "1", "meta": {"n": 1}},
        {"prompt": "b", "answer": "2", "meta": {"n": 1.5, "m": 2}},
    ]
    (tmp_path / "parts").mkdir()
    for i, row in enumerate(rows):
        part = pa.Table.from_pylist([row]).append_column("level", level)
        parquet.write_table(part, tmp_path / "parts" / f"{i}.parquet")
    loaded = load_file(tmp_path / "parts", test_size=0).train
    assert repr(list(loaded["meta"])) == repr([row["meta"] for row in rows])
    assert list(loaded["level"]) == ["e", "e"]
    kinds = datasets.Features(
        {name: datasets.Value("string") for name in ("prompt", "answer")}
        | {"meta": datasets.Json(), "all": datasets.List(datasets.Json())}
    )
    saved = datasets.Dataset.from_list([{**row, "all": [row["meta"], 0.3]} for row in rows], features=kinds)
    saved.save_to_disk(tmp_path / "saved")
    for found in (load_file(tmp_path / "saved", test_size=0).train, _given(saved, tmp_path)):
        assert repr(list(found["meta"])) == repr([row["meta"] for row in rows])
        assert list(found["all"]) == [[row["meta"], 0.3] for row in rows]


def _given(rows: Any, folder: Path) -> Any:
    return load_file(Path(write_rows(rows, folder / "given")["dataset.path"]), test_size=0).train


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("6.02e23", "6.02e23"),
        ("1.50", "1.50"),
        ("1E-7", "1E-7"),
        ("3.14159265358979323846", "3.14159265358979323846"),
        ("27.0", "27"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("true", "True"),
    ],
)
def test_a_number_keeps_its_text(tmp_path: Path, text: str, answer: str) -> None:
    lines = [f'{{"prompt": "q{i}", "answer": {value}}}\n' for i, value in enumerate((text, "1"))]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    rows = load_file(tmp_path / "rows.jsonl", test_size=0).train
    assert list(rows["answer"]) == [answer, "1"]
    assert "original_answer" not in rows.column_names
    inner = [line.replace('"answer": ', '"meta": {"all": [1.50], "truth": ').replace("}", "}}") for line in lines]
    (tmp_path / "inner.jsonl").write_text("".join(inner))
    rows = load_file(tmp_path / "inner.jsonl", test_size=0, answer_column="meta.truth").train
    assert list(rows["answer"]) == [answer, "1"]
    assert [row["meta"]["all"] for row in rows] == [[1.5], [1.5]]
    part = {"path": str(tmp_path / "inner.jsonl"), "columns": {"prompt": "prompt", "meta.truth": "answer"}}
    blended = data.load(DatasetConfig(mixture=MixtureConfig(datasets=[part]), test_size=0), 0).train
    assert sorted(blended["answer"]) == sorted([answer, "1"])


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        (pa.array([0.1], pa.float32()), "0.1"),
        (pa.array([np.float16(0.1)], pa.float16()), "0.1"),
        (pa.array([6.02e23], pa.float64()), "6.02e+23"),
        (pa.array([decimal.Decimal("1.50")]), "1.50"),
        (pa.array([datetime.date(2026, 1, 2)]), "2026-01-02"),
        (pa.array([datetime.datetime(2026, 1, 2)]), "2026-01-02"),
        (pa.array([datetime.datetime(2026, 1, 2, 3, 4)]), "2026-01-02 03:04:00"),
        (pa.array([datetime.time(3, 4)]), "03:04:00"),
    ],
)
def test_numbers_and_dates_of_arrow_are_answers(tmp_path: Path, values: pa.Array, answer: str) -> None:
    table = pa.table({"prompt": ["q"], "answer": values})
    parquet.write_table(table, tmp_path / "rows.parquet")
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    for name in ("rows.parquet", "saved"):
        assert list(load_file(tmp_path / name, test_size=0).train["answer"]) == [answer]
    assert list(_given(datasets.Dataset(table), tmp_path)["answer"]) == [answer]


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        ([("a", 0.1)], pa.map_(pa.string(), pa.float32()), [["a", 0.1]]),
        (
            {"at": datetime.datetime(2026, 1, 2, 3, 4), "score": 0.1},
            pa.struct([("at", pa.timestamp("ns")), ("score", pa.float32())]),
            {"at": "2026-01-02 03:04:00", "score": 0.1},
        ),
        ([("a", 1)], pa.map_(pa.string(), pa.int64()), [["a", 1]]),
    ],
)
def test_maps_and_narrow_floats_beside_what_json_lacks(
    tmp_path: Path, value: Any, kind: pa.DataType, found: Any
) -> None:
    table = pa.table({"prompt": ["q"], "answer": ["1"], "meta": pa.array([value], kind)})
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert load_file(tmp_path / "rows.parquet", test_size=0).train[0]["meta"] == found


def test_narrow_floats_are_their_text_wherever_they_stand(tmp_path: Path) -> None:
    kind = pa.struct([("scores", pa.list_(pa.float32())), ("truth", pa.float32())])
    rows = {"prompt": ["a"], "meta": pa.array([{"scores": [0.1, None, 2.0], "truth": 0.7}], kind)}
    parquet.write_table(pa.table(rows), tmp_path / "rows.parquet")
    found = load_file(tmp_path / "rows.parquet", test_size=0, answer_column="meta.truth").train[0]
    assert (found["answer"], found["meta"]) == ("0.7", {"scores": [0.1, None, 2.0], "truth": 0.7})
    mixed = pa.array([{"image": b"x", "size": 0.5}], pa.struct([("image", pa.binary()), ("size", pa.float32())]))
    parquet.write_table(pa.table({"prompt": ["a"], "answer": ["1"], "meta": mixed}), tmp_path / "bytes.parquet")
    assert load_file(tmp_path / "bytes.parquet", test_size=0).train[0]["meta"] == {"image": b"x", "size": 0.5}
    frame = pd.DataFrame({"prompt": ["a", "b"], "answer": np.array([0.1, 0.7], dtype=np.float32)})
    assert list(_given(frame, tmp_path)["answer"]) == ["0.1", "0.7"]
    given = [{"prompt": "a", "answer": np.float32(0.1), "scores": np.array([0.1, 2], dtype=np.float32)}]
    assert _given(given, tmp_path)[0]["scores"] == [0.1, 2.0]
    assert _given(given, tmp_path)[0]["answer"] == "0.1"
    assert _given([{"prompt": "a", "answer": decimal.Decimal("1.50")}], tmp_path)[0]["answer"] == "1.50"


def test_files_whose_columns_do_not_fit_name_the_column(tmp_path: Path) -> None:
    for name, value in (("a", b"x"), ("b", 1)):
        parquet.write_table(pa.table({"question": ["q"], "image": [value]}), tmp_path / f"{name}.parquet")
    assert "column 'image': binary, int64). Their" in error_of(tmp_path)
