"""Sources of data: local files and folders, folders saved to disk, the hub, Kaggle."""

from __future__ import annotations

import bz2
import gzip
import json
import sys
import types
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from completed import completed
from covey import data
from covey.config import DatasetConfig, MixtureConfig
from covey.errors import DataError
from data_files import QA, error_of, load_file, question, write_jsonl

# Files


def test_all_formats_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{"question": f'a "{i}", b\nc', "answer": f"0{i}"} for i in range(6)]
    write_jsonl(tmp_path / "x.jsonl", rows)
    (tmp_path / "list.json").write_text("\ufeff" + json.dumps(rows, indent=1))
    write_jsonl(tmp_path / "lines.json", rows)
    table = pa.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    lines = ["question,answer", *(f'"a ""{i}"", b\nc",0{i}' for i in range(6))]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    expected = load_file(tmp_path / "x.jsonl").train.to_list()
    assert all(row["answer"].startswith("0") for row in expected)
    (tmp_path / "x.ndjson").write_bytes((tmp_path / "x.jsonl").read_bytes())
    (tmp_path / "x.tsv").write_text("\n".join(line.replace(",0", "\t0") for line in lines[1:]))
    (tmp_path / "x.tsv").write_text(f"question\tanswer\n{(tmp_path / 'x.tsv').read_text()}")
    (tmp_path / "semicolons.csv").write_text(
        "\n".join(["question;answer", *(one.replace(",0", ";0") for one in lines[1:])])
    )
    plain = ["x.jsonl", "x.ndjson", "list.json", "lines.json", "x.parquet", "x.csv", "semicolons.csv", "x.tsv"]
    packs = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}
    for name in plain:
        content = (tmp_path / name).read_bytes()
        assert load_file(tmp_path / name).train.to_list() == expected, name
        for suffix, pack in packs.items():
            (tmp_path / f"{name}{suffix}").write_bytes(pack(content[:70]) + pack(content[70:]))  # in two members
            assert load_file(tmp_path / f"{name}{suffix}").train.to_list() == expected, f"{name}{suffix}"


def test_folders(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "main"
    folder.mkdir(parents=True)
    (tmp_path / "set" / "README.md").write_text("about")
    for part in range(2):
        rows = pa.Table.from_pylist(QA[part * 8 : part * 8 + 8])
        pyarrow.parquet.write_table(rows, folder / f"train-0000{part}-of-00002.parquet")
    write_jsonl(folder / "test.jsonl", QA[16:])
    write_jsonl(folder / "validation.jsonl", QA[:1])
    loaded = load_file(tmp_path / "set", config="main")
    assert [row["level"] for row in loaded.train] == list(range(16))
    assert sorted(row["level"] for row in loaded.evaluation["test"]) == list(range(16, 20))
    assert len(loaded.notes) == 1
    assert "validation.jsonl" in loaded.notes[0]
    message = error_of(tmp_path / "set")
    assert "no data file" in message
    assert "README.md, main/" in message
    assert ".jsonl, .ndjson, .json, .csv, .tsv, .parquet, also compressed (.gz, .bz2, .zst)" in message


def test_every_file_of_a_folder_is_read_or_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "part-0.jsonl", QA[:4])
    (tmp_path / "part-1.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, QA[4:8])).encode()))
    (tmp_path / "part-2.tsv").write_text("question\tanswer\nq\t1\n")
    for name in ("part-3.jsonl.xz", "old/part-4.jsonl", "old/deep/part-5.csv.gz", ".hidden/x.jsonl", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    loaded = load_file(tmp_path, test_size=0)
    assert len(loaded.train) == 9
    assert loaded.notes[0].startswith(
        f"not read in {tmp_path}: old/deep/part-5.csv.gz, old/part-4.jsonl, part-3.jsonl.xz. Covey reads .jsonl"
    )


def test_subfolders_called_like_splits(tmp_path: Path) -> None:
    for name, rows in (("train/a/x.jsonl", QA[:8]), ("train/y.jsonl", QA[8:12]), ("test/x.jsonl", QA[12:16])):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(tmp_path / name, rows)
    loaded = load_file(tmp_path)
    assert sorted(row["level"] for row in loaded.train) == list(range(12))
    assert sorted(row["level"] for row in loaded.evaluation["test"]) == list(range(12, 16))
    assert loaded.notes == []


def test_errors_name_the_file_of_a_row(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", QA[:2])
    write_jsonl(tmp_path / "b.jsonl", [{"question": "q", "answer": None}])
    message = error_of(tmp_path, test_size=0)
    assert "1 of 3 rows" in message
    assert f"{tmp_path / 'b.jsonl'}, line 1: null" in message


def test_the_error_of_a_missing_file_names_similar_ones(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "gsm8k_train.jsonl", QA)
    (tmp_path / "notes.txt").write_text("x")
    message = error_of(tmp_path / "gsm8k_trian.jsonl")
    assert message.startswith(f"dataset.path={tmp_path / 'gsm8k_trian.jsonl'}: there is no such file")
    assert "Did you mean gsm8k_train.jsonl?" in message
    assert "which holds gsm8k_train.jsonl." in error_of(tmp_path / "qqq")
    assert "its folder" in error_of(tmp_path / "none" / "x.jsonl")
    assert error_of(tmp_path / "gsm8k_train.jsonl", test_path=str(tmp_path / "t")).startswith("dataset.test_path=")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"", "the file is empty"),
        ("x.jsonl", b"\n \n", "holds no rows"),
        ("x.csv", b"question,answer\n", "holds no rows"),
        ("x.json", b"[]", "holds no rows"),
        ("x.txt", b"hello", "Covey reads .jsonl, .ndjson, .json, .csv, .tsv, .parquet, also compressed"),
        ("x.jsonl.xz", b"hello", "unpack it"),
        ("x.jsonl.gz", gzip.compress(b"x" * 99)[:-9], "cannot be read"),
        ("x.json.gz", b"hello", "cannot be read"),
        ("x.csv.zst", b"hello", "cannot be read"),
        ("x.jsonl.gz", gzip.compress(b'{"a": 1}\n\nhello\n'), "line 3 is not JSON"),
        ("x.jsonl", b'{"a": 1}\n\nhello\n', "line 3 is not JSON: Expecting value at character 1. The line starts"),
        ("x.jsonl", b'{"a": 1}\n{"a": \n', "line 2 is not JSON"),
        ("x.jsonl", b'{"a": 1}\n[1, 2]\n', "line 2 is not an object of columns but a list: [1, 2]"),
        ("x.jsonl", b'{"a": 1}\n7\n', "line 2 is not an object of columns but a number: 7"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "line 2 is not UTF-8 text"),
        ("x.jsonl", b'{"a": "\\ud83d"}\n', "line 1 holds half of a character"),
        ("x.json", b'[{"a": 1},\n {"a": x}]', "line 2 is not JSON: Expecting value at character 8. The line starts"),
        ("x.json", b'[{"a": 1}, 2]', "item 2 is not an object of columns but a number: 2"),
        ("x.json", b'{"rows":\n [{"a": 1}]}', "holds one JSON object, not rows"),
        ("x.json", b'{"data": [{"a": 1}]}\n', "holds one JSON object, not rows"),
        ("x.csv", b"q,a\na,1\nb,c,2\n", "line 3: this row has 3 fields, but the header has 2 (q, a)"),
        ("x.csv", b'question,answer\na,"1\n', "is not CSV: unexpected end of data"),
        ("x.csv", b"q\ta\na\t1\n", "commas separate the columns of CSV, and its first line has none: q"),
        ("x.csv", b"q;a\na;1;2\n", "Put text that holds semicolons or line breaks in quotes"),
        ("x.tsv", b"q,a\na,1\n", "tabs separate the columns of TSV, and its first line has none: q"),
        ("x.tsv", b"q\ta\na\t1\t2\n", "Put text that holds tabs or line breaks in quotes"),
        ("x.csv", b"a,a\n1,2\n", "the column 'a' more than once"),
        ("x.parquet", b"PAR1 but not really", "is not a Parquet file"),
        ("x.jsonl", b'{"question": "q", "answer": "1"}\n', "has only one row"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = error_of(path)
    assert message in found
    assert str(path) in found


# The hub


def fake_hub(monkeypatch: pytest.MonkeyPatch, **splits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    whole = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})

    def load_dataset(path: str, **options: Any) -> Any:
        calls.append({"path": path, **options})
        return whole if options["split"] is None else whole["train"].select(range(2))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_hub(monkeypatch, train=QA[:12], test=QA[12:])
    config = DatasetConfig(id="a/b", config="main", revision="v1", answer_extractor="gsm8k", test_size=5)
    loaded = data.load(config, seed=0)
    assert calls == [{"path": "a/b", "name": "main", "revision": "v1", "split": None}]
    assert len(loaded.train) == 12
    assert len({row["level"] for row in loaded.evaluation["test"]} - set(range(12))) == 5
    assert loaded.notes == []


def test_hub_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, train=QA)
    loaded = data.load(DatasetConfig(id="a/b"), seed=0)
    assert (len(loaded.train), len(loaded.evaluation["test"])) == (16, 4)
    assert "a/b has no split 'test' (it has train)" in loaded.notes[0]
    assert len(data.load(DatasetConfig(id="a/b", train_split="train[:2]", test_size=0), seed=0).train) == 2
    with pytest.raises(
        DataError, match=r"dataset\.train_split=trian: a/b has no such split; it has train\. Did you mean"
    ):
        data.load(DatasetConfig(id="a/b", train_split="trian"), seed=0)
    with pytest.raises(DataError, match=r"dataset\.test_split=validation: a/b has no such split"):
        data.load(DatasetConfig(id="a/b", test_split="validation"), seed=0)
    with pytest.raises(DataError, match="are both 'train'"):
        data.load(DatasetConfig(id="a/b", test_split="train"), seed=0)


def test_path_takes_precedence_over_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_hub(monkeypatch, train=QA)
    loaded = data.load(DatasetConfig(id="a/b", path=str(write_jsonl(tmp_path / "x.jsonl", QA[:5]))), seed=0)
    assert len(loaded.train) == 4
    assert not calls


def test_a_hub_that_cannot_be_reached() -> None:
    """The real library, offline as all tests are."""
    with pytest.raises(DataError) as caught:
        data.load(DatasetConfig(id="covey-test/no-such-set", config="main"), seed=0)
    message = str(caught.value)
    assert message.startswith(
        "The dataset dataset.id=covey-test/no-such-set config=main could not be loaded from the hub: "
    )
    assert "dataset.path=FILE" in message
    assert "\n" not in message


def test_a_benchmark_is_told_by_its_own_key(tmp_path: Path) -> None:
    """Its local file goes into `evaluation.benchmark_paths`: `dataset.path` would replace the training data."""
    from covey.evaluation.job import benchmark

    def told(path: str | None) -> str:
        with pytest.raises(DataError) as caught:
            data.load(benchmark("gsm8k", path, DatasetConfig()), seed=0, benchmark="gsm8k")
        assert "dataset." not in str(caught.value)
        return str(caught.value)

    message = told(None)
    assert message.startswith("The dataset openai/gsm8k config=main could not be loaded from the hub: ")
    assert "evaluation.benchmark_paths.gsm8k=FILE" in message
    assert told("/nowhere.jsonl").startswith("evaluation.benchmark_paths.gsm8k=/nowhere.jsonl: there is no such file")
    renamed = write_jsonl(tmp_path / "renamed.jsonl", [{"q": "1 + 1?", "a": "2"}])
    assert "has no column 'question', which holds the prompt in gsm8k as on the hub; it has q, a." in told(str(renamed))
    unmarked = write_jsonl(tmp_path / "unmarked.jsonl", [{"question": "1 + 1?", "answer": "two"}])
    with pytest.raises(DataError, match=r"Fix or remove these rows\.$"):
        data.load(benchmark("gsm8k", str(unmarked), DatasetConfig()), seed=0, benchmark="gsm8k")


def test_a_missing_file_of_a_relative_path_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inside").mkdir()
    write_jsonl(tmp_path / "rows.jsonl", QA)
    monkeypatch.chdir(tmp_path / "inside")
    assert f"there is no such file in {tmp_path}. Did you mean rows.jsonl?" in error_of(Path("../row.jsonl"))
    assert f"there is no such file in {tmp_path / 'inside'}, which holds nothing." in error_of(Path("x.jsonl"))


def test_rows_are_counted_by_those_that_are_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"question": f"q{i}", "answer": None} for i in range(3)])
    assert f"2 of 2 rows taken from {path} (3 rows) have no answer" in error_of(path)


# Streaming


def fake_stream(monkeypatch: pytest.MonkeyPatch, **splits: int) -> dict[str, int]:
    """A hub that streams splits of these sizes; the result counts the rows taken from each."""
    read = dict.fromkeys(splits, 0)

    def rows(split: str, count: int) -> Any:
        for i in range(count):
            read[split] += 1
            yield {"question": f"{split} {i}", "answer": str(i)}

    def load_dataset(path: str, **options: Any) -> Any:
        assert options["streaming"] is True
        return datasets.IterableDatasetDict(
            {
                name: datasets.IterableDataset.from_generator(rows, gen_kwargs={"split": name, "count": count})
                for name, count in splits.items()
            }
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return read


def test_streaming_reads_no_more_rows_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    read = fake_stream(monkeypatch, train=10_000, test=500)
    loaded = data.load(DatasetConfig(id="a/b", streaming=True, max_train_samples=12, test_size=5), seed=0)
    assert [question(row) for row in loaded.train] == [f"train {i}" for i in range(12)]
    assert sorted(question(row) for row in loaded.evaluation["test"]) == [f"test {i}" for i in range(5)]
    assert read == {"train": 12, "test": 5}
    assert loaded.notes == ["a/b, split train: the first 12 rows were read (dataset.streaming)"]


def test_streaming_reads_the_rows_that_are_held_out_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    read = fake_stream(monkeypatch, train=10_000)
    keys = {"test_size": 5, "validation_fraction": 0.25, "train_fraction": 0.5}
    loaded = data.load(DatasetConfig(id="a/b", streaming=True, max_train_samples=30, **keys), seed=0)
    assert len(loaded.train) == 30
    assert {name: len(rows) for name, rows in loaded.evaluation.items()} == {"test": 5, "validation": 20}
    assert read["train"] == 85  # (85 - 5) · 0.75 · 0.5 = 30
    few = fake_stream(monkeypatch, train=7)
    assert len(data.load(DatasetConfig(id="a/b", streaming=True, max_train_samples=30), seed=0).train) == 6
    assert few["train"] == 7


def test_streaming_in_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    read = fake_stream(monkeypatch, train=10_000)
    mixture = MixtureConfig(datasets=[{"id": "a/b"}])
    loaded = data.load(DatasetConfig(mixture=mixture, streaming=True, max_train_samples=9, test_size=0), seed=0)
    assert len(loaded.train) == read["train"] == 9


def test_invalid_streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_stream(monkeypatch, train=5)
    with pytest.raises(DataError, match=r"needs a limit, dataset\.max_train_samples=N"):
        data.load(DatasetConfig(id="a/b", streaming=True), seed=0)
    with pytest.raises(DataError, match=r"'train\[:3\]' is a slice or a sum of splits, which cannot be streamed"):
        data.load(DatasetConfig(id="a/b", streaming=True, train_split="train[:3]", max_train_samples=2), seed=0)
    with pytest.raises(DataError, match=r"dataset\.train_split=trian: a/b has no such split; it has train\. Did you"):
        data.load(DatasetConfig(id="a/b", streaming=True, train_split="trian", max_train_samples=2), seed=0)


# Folders saved to disk


def test_saved_folders(tmp_path: Path) -> None:
    whole = datasets.Dataset.from_list(QA)
    whole.save_to_disk(tmp_path / "one")
    loaded = load_file(tmp_path / "one")
    assert (len(loaded.train), len(loaded.evaluation["test"])) == (16, 4)
    assert "was saved without splits" in loaded.notes[0]

    splits = datasets.DatasetDict(train=whole.select(range(12)), test=whole.select(range(12, 20)))
    splits.save_to_disk(tmp_path / "two")
    loaded = load_file(tmp_path / "two")
    assert [row["level"] for row in loaded.train] == list(range(12))
    assert sorted(row["level"] for row in loaded.evaluation["test"]) == list(range(12, 20))
    apart = load_file(tmp_path / "one", test_path=str(tmp_path / "two"), test_size=100)
    assert (len(apart.train), len(apart.evaluation["test"])) == (20, 8)
    message = error_of(tmp_path / "two", train_split="trian")
    assert f"dataset.train_split=trian: {tmp_path / 'two'} has no such split; it has train, test." in message
    assert "Did you mean dataset.train_split=train?" in message

    next((tmp_path / "one").glob("*.arrow")).write_bytes(b"broken")
    message = error_of(tmp_path / "one")
    assert message.startswith(f"dataset.path={tmp_path / 'one'}: this folder was saved by the datasets library, but")


def test_a_split_without_a_file_in_the_folder(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", QA)
    write_jsonl(tmp_path / "train_prefs.jsonl", QA[:4])
    assert len(load_file(tmp_path, train_split="train_prefs", test_size=0).train) == 4
    for key in ("train_split", "test_split"):
        message = error_of(tmp_path, **{key: "dev"})
        assert f"dataset.path={tmp_path}: none of its files is of the split 'dev' by its name" in message
        assert "train.jsonl, train_prefs.jsonl" in message


# Kaggle


def test_kaggle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", QA[:15])
    write_jsonl(tmp_path / "test.jsonl", QA[15:])
    calls = []

    def dataset_download(handle: str, path: str | None = None) -> str:
        calls.append((handle, path))
        return str(tmp_path / path if path else tmp_path)

    fake = types.ModuleType("kagglehub")
    fake.dataset_download = dataset_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kagglehub", fake)
    loaded = data.load(DatasetConfig(path="kaggle://ann/sums"), seed=0)
    assert (len(loaded.train), len(loaded.evaluation["test"])) == (15, 5)
    keys = {"path": "kaggle://ann/sums/versions/3/train.jsonl", "test_path": "kaggle://ann/sums/test.jsonl"}
    loaded = data.load(DatasetConfig(**keys), seed=0)
    assert (len(loaded.train), len(loaded.evaluation["test"])) == (15, 5)
    assert calls == [("ann/sums", None), ("ann/sums/versions/3", "train.jsonl"), ("ann/sums", "test.jsonl")]
    with pytest.raises(DataError, match=r"dataset\.path=kaggle://ann: this is not a Kaggle dataset"):
        data.load(DatasetConfig(path="kaggle://ann"), seed=0)
    monkeypatch.setattr(fake, "dataset_download", lambda *_, **__: 1 / 0)
    with pytest.raises(DataError, match=r"could not be downloaded from Kaggle: division by zero \(ZeroDivisionError\)"):
        data.load(DatasetConfig(path="kaggle://ann/sums"), seed=0)


def test_kaggle_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kagglehub", None)  # as if it were not installed
    with pytest.raises(DataError, match=r"needs the package kagglehub.*pip install .*\[kaggle\]"):
        data.load(DatasetConfig(path="kaggle://ann/sums"), seed=0)


def test_importing_covey_data_is_cheap() -> None:
    heavy = "[name for name in ('torch', 'datasets', 'pyarrow') if name in sys.modules]"
    code = f"import sys, covey.data, covey.rewards; print({heavy})"
    done = completed([sys.executable, "-c", code], check=True)
    assert done.stdout.strip() == "[]"


def test_one_row_beside_files_that_are_not_read_names_these(tmp_path: Path) -> None:
    for name in ("part-0.jsonl", "other/part-3.ndjson"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_jsonl(tmp_path / name, [{"question": "q", "answer": "1"}])
    found = error_of(tmp_path)
    assert "has only one row" in found
    assert f"Note: not read in {tmp_path}: other/part-3.ndjson." in found
