"""Loading data: the rows, the held-out sets, and the errors for data that cannot be used."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from covey import data
from covey.config import DatasetConfig, DifficultyConfig
from covey.config import load as load_config
from covey.errors import DataError
from data_files import QA, error_of, load_file, question, write_jsonl

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


def test_the_error_of_too_few_arithmetic_problems_names_the_key() -> None:
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


def test_a_fifth_is_held_out_by_seed_with_a_note(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "qa.jsonl", QA)
    loaded, again = (load_file(path, seed) for seed in (0, 1))
    other = data.load(DatasetConfig(path=str(path), seed=1), 0)
    levels = [row["level"] for row in loaded.evaluation["test"]]
    assert len(levels) == 4
    assert [row["level"] for row in loaded.train] == [i for i in range(20) if i not in levels]  # in the file's order
    assert again.evaluation["test"].to_list() == loaded.evaluation["test"].to_list()
    assert other.evaluation["test"].to_list() != loaded.evaluation["test"].to_list()
    assert len(loaded.notes) == 1
    assert "4 of the 20 rows" in loaded.notes[0]
    assert str(path) in loaded.notes[0]


@pytest.mark.parametrize(("rows", "test_size", "held_out"), [(20, 3, 3), (20, 256, 4), (3, 256, 1), (20, 0, None)])
def test_size_of_the_held_out_set(tmp_path: Path, rows: int, test_size: int, held_out: int | None) -> None:
    loaded = load_file(write_jsonl(tmp_path / "qa.jsonl", QA[:rows]), test_size=test_size)
    assert len(loaded.train) == rows - (held_out or 0)
    assert [len(test) for test in loaded.evaluation.values()] == ([] if held_out is None else [held_out])


def test_max_train_samples_limits_the_training_rows_after_holding_out(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "qa.jsonl", QA)
    whole, limited = load_file(path), load_file(path, max_train_samples=5)
    assert limited.train.to_list() == whole.train.to_list()[:5]
    assert limited.evaluation["test"].to_list() == whole.evaluation["test"].to_list()


def test_a_test_file_is_shuffled_and_repeats_are_noted(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "a.jsonl", QA[:10])
    test = write_jsonl(tmp_path / "b.jsonl", QA[8:])
    loaded = load_file(train, test_path=str(test))
    levels = [row["level"] for row in loaded.evaluation["test"]]
    assert len(loaded.train) == 10
    assert sorted(levels) == list(range(8, 20))
    assert levels != sorted(levels)
    assert loaded.notes == [
        "2 of the 12 held-out problems are also in the training rows, ignoring white space and case: the "
        'model may memorise them. For example "What is 9 + 9?" (held out: line 2; training: line 10)'
    ]
    assert "are the same" in error_of(train, test_path=str(train))


def test_repeats_are_found_despite_white_space_case_and_format(tmp_path: Path) -> None:
    train = write_jsonl(
        tmp_path / "a.jsonl", [{"prompt": "What  is\n1 + 1?", "answer": 2}, {"prompt": "b", "answer": 1}]
    )
    asked = [{"role": "system", "content": "Reason."}, {"role": "user", "content": "what is 1 + 1? "}]
    test = write_jsonl(tmp_path / "b.jsonl", [{"prompt": asked, "answer": 2}])
    note = load_file(train, test_path=str(test)).notes[-1]
    assert note.startswith("1 of the 1 held-out problems are also in the training rows")
    assert "(held out: line 1; training: line 1)" in note


def levels(rows: Any) -> list[int]:
    return [row["level"] for row in rows]


def test_validation_and_fractions(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "qa.jsonl", [{**row, "level": i} for i, row in enumerate(QA * 5)])
    keys = {"test_fraction": 0.29, "validation_fraction": 0.25}
    loaded = load_file(path, **keys)
    test, validation = levels(loaded.evaluation["test"]), levels(loaded.evaluation["validation"])
    train = levels(loaded.train)
    assert (len(test), len(validation), len(train)) == (29, 17, 54)  # a quarter of the 71 rows that are not `test`
    assert sorted(test + validation + train) == list(range(100))
    assert train == sorted(train)
    assert levels(load_file(path, **keys).evaluation["validation"]) == validation
    assert levels(load_file(path, seed=1, **keys).evaluation["validation"]) == validation
    other = data.load(DatasetConfig(path=str(path), seed=1, **keys), 0)  # type: ignore[arg-type]
    assert levels(other.evaluation["validation"]) != validation
    half = load_file(path, **keys, train_fraction=0.5)
    small = load_file(path, **keys, train_fraction=0.25, max_train_samples=10)
    assert levels(half.evaluation["validation"]) == validation
    assert len(half.train) == 27
    assert levels(half.train) == sorted(levels(half.train))
    assert set(levels(half.train)) < set(train)
    assert len(small.train) == 10
    assert set(levels(small.train)) < set(levels(half.train))


def test_fractions_of_a_built_in_task() -> None:
    tiny = DifficultyConfig(min_digits=1, max_digits=1, operators=("+",))
    config = DatasetConfig(
        task="arithmetic", train_size=200, test_size=3, validation_fraction=0.1, train_fraction=0.5, difficulty=tiny
    )
    loaded = data.load(config, seed=0)
    assert len(loaded.evaluation["validation"]) == 20
    assert len(loaded.train) <= 90

    def sums(rows: Any) -> set[tuple[str, ...]]:
        return {tuple(sorted(question(row).removesuffix("?").split()[2::2])) for row in rows}

    assert sums(loaded.train)
    assert not sums(loaded.train) & sums(loaded.evaluation["validation"])  # copies in any order are removed
    assert loaded.notes == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"train_fraction": 0.01}, r"dataset.train_fraction=0.01 of the 16 training rows of .* is less than one row"),
        ({"validation_fraction": 0.05}, r"dataset.validation_fraction=0.05 of the 16 rows of .* leaves no row to eval"),
        ({"test_fraction": 0.01}, r"dataset.test_fraction=0.01 of the 20 rows of .* leaves no row to evaluate on"),
    ],
)
def test_fractions_that_leave_nothing(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_file(write_jsonl(tmp_path / "qa.jsonl", QA), **keys)


# The presets on real files


PRESETS = [
    ("gsm8k", "gsm8k_train.jsonl", 7473, ["72", "10", "5"]),
    ("gsm8k", "gsm8k_test.jsonl", 1319, ["18", "3", "70000"]),
    ("deepscaler", "deepscaler_10k.jsonl", 9998, [r"\frac{3}{7}", "124", "432"]),
    ("openr1_math", "deepscaler_10k.jsonl", 9998, [r"\frac{3}{7}", "124", "432"]),
    ("math500", "math500_test.jsonl", 500, [r"\left( 3, \frac{\pi}{2} \right)", "p - q", r"\frac{14}{3}"]),
    ("aime24", "aime24.jsonl", 30, ["204", "113", "371"]),
    ("amc23", "amc23.jsonl", 40, ["27", "36", "45"]),
    (
        "countdown",
        "countdown_tinyzero_test.jsonl",
        2001,
        ['{"numbers": [96, 7, 37, 74], "target": 55}', '{"numbers": [40, 74, 58], "target": 56}'],
    ),
]


@pytest.mark.parametrize(("preset", "file", "rows", "answers"), PRESETS)
def test_presets_read_real_files(shared_data: Path, preset: str, file: str, rows: int, answers: list[str]) -> None:
    path = shared_data / file
    config = load_config([f"dataset={preset}", f"dataset.path={path}", "dataset.test_size=0"]).dataset
    loaded = data.load(config, seed=0)
    assert len(loaded.train) == rows
    assert loaded.train["answer"][: len(answers)] == answers
    assert all(answer.strip() for answer in loaded.train["answer"])
    first = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert question(loaded.train[0]) == first.get("problem", first.get("question"))
    assert loaded.train[0]["prompt"][0]["role"] == "system"
    assert loaded.notes == []


def test_gsm8k_with_its_test_file(shared_data: Path) -> None:
    path, test_path = (str(shared_data / f"gsm8k_{split}.jsonl") for split in ("train", "test"))
    loaded = data.load(DatasetConfig(path=path, test_path=test_path, answer_extractor="gsm8k", test_size=1319), seed=0)
    assert (len(loaded.train), len(loaded.evaluation["test"])) == (7473, 1319)
    answers = [*loaded.train["answer"], *loaded.evaluation["test"]["answer"]]
    assert [answer for answer in answers if not re.fullmatch(r"-?\d+(\.\d+)?", answer)] == []
    assert loaded.notes == []
