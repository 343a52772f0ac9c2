"""Reading data: what comes out row by row, and one clear paragraph for everything that cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from covey import data
from covey.config import DatasetConfig, DifficultyConfig
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


# The built-in task


def test_arithmetic_rows() -> None:
    config = DatasetConfig(task="arithmetic", train_size=300, test_size=40, hard_size=30, system_prompt="Think.")
    loaded = data.load(config, seed=1)
    assert set(loaded.evaluation) == {"test", "hard"}
    sets = {"train": loaded.train, **loaded.evaluation}
    assert {name: len(rows) for name, rows in sets.items()} == {"train": 300, "test": 40, "hard": 30}
    for name, rows in sets.items():
        for row in rows:
            system, user = row["prompt"]
            assert system == {"role": "system", "content": "Think."}
            assert user["role"] == "user"
            expression = user["content"].removeprefix("What is ").removesuffix("?")
            assert row["answer"] == str(eval(expression))
            digits = [len(word) for word in expression.split() if word.isdigit()]
            assert all(d == 5 for d in digits) if name == "hard" else all(2 <= d <= 4 for d in digits)
    held_out = [question(row) for row in loaded.evaluation["test"]]
    assert len(set(held_out)) == 40
    assert not set(held_out) & {question(row) for row in loaded.train}
    assert data.load(config, seed=1).train.to_list() == loaded.train.to_list()
    assert data.load(config, seed=2).train.to_list() != loaded.train.to_list()


def test_arithmetic_sizes() -> None:
    loaded = data.load(DatasetConfig(task="arithmetic", train_size=50, max_train_samples=7, test_size=0), seed=0)
    assert len(loaded.train) == 7
    assert loaded.evaluation == {}


def test_arithmetic_that_has_too_few_problems_names_the_key() -> None:
    tiny = DifficultyConfig(min_digits=1, max_digits=1, operators=("+",))
    with pytest.raises(DataError, match=r"^dataset\.test_size=100: arithmetic with 1 to 1 digits.* gives only \d+ "):
        data.load(DatasetConfig(task="arithmetic", test_size=100, difficulty=tiny), seed=0)


# Rows


def test_rows_of_a_file(tmp_path: Path) -> None:
    loaded = load_file(
        write_jsonl(tmp_path / "qa.jsonl", QA),
        answer_extractor="gsm8k",
        system_prompt="Reason.",
        user_prompt_template=r"Put {prompt} into \boxed{}.",
    )
    for row in [*loaded.train, *loaded.evaluation["test"]]:
        i = row["level"]
        assert row == {
            "prompt": [
                {"role": "system", "content": "Reason."},
                {"role": "user", "content": rf"Put What is {i} + {i}? into \boxed{{}}."},
            ],
            "answer": str(2 * i),
            "question": f"What is {i} + {i}?",
            "original_answer": f"It is\n#### {2 * i}",
            "level": i,
        }


def test_the_cut_is_a_fifth_the_same_for_a_seed_and_said(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "qa.jsonl", QA)
    loaded, again, other = (load_file(path, seed) for seed in (0, 0, 1))
    levels = [row["level"] for row in loaded.evaluation["test"]]
    assert len(levels) == 4
    assert [row["level"] for row in loaded.train] == [i for i in range(20) if i not in levels]  # in the file's order
    assert again.evaluation["test"].to_list() == loaded.evaluation["test"].to_list()
    assert other.evaluation["test"].to_list() != loaded.evaluation["test"].to_list()
    assert len(loaded.notes) == 1
    assert "4 of the 20 rows" in loaded.notes[0]
    assert str(path) in loaded.notes[0]


@pytest.mark.parametrize(("rows", "test_size", "held_out"), [(20, 3, 3), (20, 256, 4), (3, 256, 1), (20, 0, None)])
def test_size_of_the_cut(tmp_path: Path, rows: int, test_size: int, held_out: int | None) -> None:
    loaded = load_file(write_jsonl(tmp_path / "qa.jsonl", QA[:rows]), test_size=test_size)
    assert len(loaded.train) == rows - (held_out or 0)
    assert [len(test) for test in loaded.evaluation.values()] == ([] if held_out is None else [held_out])


def test_max_train_samples_limits_the_training_rows_after_the_cut(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "qa.jsonl", QA)
    whole, limited = load_file(path), load_file(path, max_train_samples=5)
    assert limited.train.to_list() == whole.train.to_list()[:5]
    assert limited.evaluation["test"].to_list() == whole.evaluation["test"].to_list()


def test_a_test_file_is_shuffled_and_repeats_are_said(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "a.jsonl", QA[:10])
    test = write_jsonl(tmp_path / "b.jsonl", QA[8:])
    loaded = load_file(train, test_path=str(test))
    levels = [row["level"] for row in loaded.evaluation["test"]]
    assert len(loaded.train) == 10
    assert sorted(levels) == list(range(8, 20))
    assert levels != sorted(levels)
    assert loaded.notes == [
        "2 of the 12 held-out problems also stand in the training rows, word for word: the model may know them by heart"
    ]
    assert "are the same" in error_of(train, test_path=str(train))


def test_gsm8k_file(shared_data: Path) -> None:
    loaded = load_file(
        shared_data / "gsm8k_train.jsonl",
        test_path=str(shared_data / "gsm8k_test.jsonl"),
        prompt_column="question",
        answer_column="answer",
        answer_extractor="gsm8k",
        config="main",
        test_size=100,
    )
    assert len(loaded.train) == 7473
    assert len(loaded.evaluation["test"]) == 100
    assert loaded.train[0]["answer"] == "72"
    assert loaded.train[0]["prompt"][0]["content"].startswith("Natalia sold clips")
    assert all(float(answer) == float(answer) for answer in loaded.train["answer"])
    assert loaded.notes == []


@pytest.mark.parametrize("name", ["math500_test.jsonl", "deepscaler_10k.jsonl", "amc23.jsonl", "aime24.jsonl"])
def test_other_real_files_need_no_column_names(shared_data: Path, name: str) -> None:
    loaded = load_file(shared_data / name)
    rows = [json.loads(line) for line in (shared_data / name).read_text(encoding="utf-8").splitlines()]
    answers = {row["problem"]: row["answer"] for row in rows}
    row = loaded.train[0]
    expected = answers[question(row)]
    assert row["answer"] == (str(int(expected)) if isinstance(expected, float) else str(expected))


# Columns


def test_usual_names_are_found_and_named_ones_win(tmp_path: Path) -> None:
    rows = [{"problem": f"p{i}", "query": f"q{i}", "solution": f"s{i}", "label": i} for i in range(5)]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    found = load_file(path).train[0]
    assert (question(found)[0], found["answer"][0]) == ("p", "s")
    named = load_file(path, prompt_column="query", answer_column="label").train[0]
    assert question(named) == f"q{named['label']}"
    assert named["answer"] == str(named["label"])


def test_missing_columns_name_those_there_are(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"task_text": "p", "answer": "1"}] * 2)
    message = error_of(path)
    assert "looks like the prompt" in message
    assert "it has task_text, answer" in message
    assert "dataset.prompt_column=NAME" in message
    message = error_of(path, prompt_column="task_txt")
    assert "no column 'task_txt', which dataset.prompt_column names; it has task_text, answer" in message


def test_rows_without_an_answer_are_refused_with_their_lines(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": "no mark here" if i % 2 else "#### 1"} for i in range(10)]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    path.write_text("\n" + path.read_text())  # a blank line, which the numbers must count
    message = error_of(path, answer_extractor="gsm8k", test_size=0)
    assert f"5 of 10 rows of {path} have no answer" in message
    assert 'line 3: "no mark here"; line 5: "no mark here"; line 7: "no mark here"; and 2 more' in message
    assert "'####'" in message


@pytest.mark.parametrize("value", [None, "", "  ", [1], {"a": 1}])
def test_values_that_are_no_answer(tmp_path: Path, value: Any) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"question": "q", "answer": value}] * 2)
    message = error_of(path, test_size=0)
    assert "2 of 2 rows" in message
    assert "no answer that can be read from column 'answer' (line 1: " in message


@pytest.mark.parametrize("value", [None, "", [], [{"role": "user"}], [{"role": "system", "content": "s"}], 5])
def test_values_that_are_no_prompt(tmp_path: Path, value: Any) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"prompt": value, "answer": 1}] * 2)
    message = error_of(path, test_size=0)
    assert "2 of 2 rows" in message
    assert "no prompt in column 'prompt' (line 1: " in message


def test_conversations_are_kept(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "1 + 1?"},
    ]
    path = write_jsonl(tmp_path / "x.jsonl", [{"prompt": turns, "answer": 2}] * 2)
    row = load_file(path).train[0]
    assert row == {"prompt": turns, "answer": "2"}
    loaded = load_file(path, system_prompt="Think.", user_prompt_template="Q: {prompt}")
    changed = loaded.train[0]
    assert [m["content"] for m in changed["prompt"]] == ["Think.", "Hello", "Hi", "Q: 1 + 1?"]
    assert changed["original_prompt"] == turns
    assert any("replaces the system message of 1 rows" in note for note in loaded.notes)


def test_the_reply_in_messages_does_not_give_the_answer_away(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    loaded = load_file(write_jsonl(tmp_path / "x.jsonl", [{"messages": turns, "answer": 2}] * 2))
    assert loaded.train[0]["prompt"] == turns[:1]
    assert any("reply at the end of 1 conversations" in note for note in loaded.notes)


def test_columns_of_several_kinds(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "answer": 1, "extra": [1], "id": 2**70},
        {"question": "b", "answer": "x", "extra": "text", "completions": 3},
    ]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    loaded = load_file(path, test_size=0)
    assert loaded.train["answer"] == ["1", "x"]
    assert loaded.train["extra"] == ["[1]", '"text"']
    assert loaded.train["id"] == [str(2**70), None]
    assert loaded.train["original_completions"] == [None, 3]
    assert "completions" not in loaded.train.column_names
    assert {note.split("'")[1] for note in loaded.notes} == {"answer", "extra", "id", "completions"}
    assert "holds a list and text in different rows" in error_of(path, prompt_column="extra")


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
    for name in ("list.json", "lines.json", "x.parquet", "x.csv"):
        assert load_file(tmp_path / name).train.to_list() == expected, name


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
    assert ".jsonl, .json, .csv, .parquet" in message


def test_a_row_of_one_of_several_files_is_named_with_its_file(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", QA[:2])
    write_jsonl(tmp_path / "b.jsonl", [{"question": "q", "answer": None}])
    message = error_of(tmp_path, test_size=0)
    assert "1 of 3 rows" in message
    assert f"{tmp_path / 'b.jsonl'}, line 1: null" in message


def test_missing_files_name_what_is_near(tmp_path: Path) -> None:
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
        ("x.txt", b"hello", "one of the endings .jsonl, .json, .csv, .parquet"),
        ("x.jsonl", b'{"a": 1}\n\nhello\n', "line 3 is not JSON: Expecting value at character 1. The line starts"),
        ("x.jsonl", b'{"a": 1}\n{"a": \n', "line 2 is not JSON"),
        ("x.jsonl", b'{"a": 1}\n[1, 2]\n', "line 2 is not an object of columns but a list: [1, 2]"),
        ("x.jsonl", b'{"a": 1}\n7\n', "line 2 is not an object of columns but a number: 7"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "line 2 is not UTF-8 text"),
        ("x.jsonl", b'{"a": "\\ud83d"}\n', "line 1 holds half of a character"),
        ("x.json", b'[{"a": 1},\n {"a": x}]', "line 2 is not JSON: Expecting value at character 8. The line starts"),
        ("x.json", b'[{"a": 1}, 2]', "item 2 is not an object of columns but a number: 2"),
        ("x.json", b'{"rows":\n [{"a": 1}]}', "holds one JSON object, not rows"),
        ("x.csv", b"q,a\na,1\nb,c,2\n", "line 3: this row has 3 fields, but the header has 2 (q, a)"),
        ("x.csv", b'question,answer\na,"1\n', "is not CSV: unexpected end of data"),
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


def test_path_beats_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        "The data set dataset.id=covey-test/no-such-set config=main could not be loaded from the hub: "
    )
    assert "dataset.path=FILE" in message
    assert "\n" not in message


def test_importing_covey_data_is_cheap() -> None:
    heavy = "[name for name in ('torch', 'datasets', 'pyarrow') if name in sys.modules]"
    code = f"import sys, covey.data, covey.rewards; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
