"""Rows for environments: no prompt and no answer needed, every column with its types, a choice among several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey import data
from covey.config import DatasetConfig
from covey.config.groups.dataset import MixtureConfig
from covey.config.groups.environment import EnvironmentConfig
from covey.errors import DataError
from data_files import write_jsonl

ROWS: list[dict[str, Any]] = [
    {"target": 5, "state": {"a": 1}, "mixed": 1, "level": 1, "answer": 5, "big": 1},
    {"target": 6, "state": {"b": [1, "x", 0.3]}, "mixed": "x", "level": 2.5, "answer": 6, "big": 2**70},
    {"target": 7, "state": None, "mixed": {"q": []}, "level": 3, "answer": 7, "big": 2},
    {"target": 8, "state": {}, "mixed": [1, None], "level": 4, "answer": 8, "big": 0.1 + 0.2},
]
GAME = EnvironmentConfig(factory="game.py:Game")


def load(path: Path, environment: EnvironmentConfig = GAME, answer_for: str | None = None, **keys: Any) -> Any:
    config = DatasetConfig(path=str(path), **{"test_size": 0, **keys})
    return data.load(config, 0, answer_for=answer_for, environment=environment)


def exactly(rows: Any) -> str:
    return repr([dict(row) for row in rows])  # 1 is not 1.0 here


def test_every_column_is_as_it_is_in_the_file(tmp_path: Path) -> None:
    loaded = load(write_jsonl(tmp_path / "rows.jsonl", ROWS))
    assert exactly(loaded.train) == repr(ROWS)
    assert exactly(loaded.train.select([3, 1])) == repr([ROWS[3], ROWS[1]])
    assert repr(list(loaded.train["state"])) == repr([row["state"] for row in ROWS])
    assert loaded.notes == []


def test_files_of_a_folder_agree_on_the_columns_of_json(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "one.jsonl", ROWS[:1])  # Arrow keeps these values as they are
    write_jsonl(tmp_path / "two.jsonl", ROWS[1:])
    assert exactly(load(tmp_path).train) == repr(ROWS)


def test_the_same_without_an_environment(tmp_path: Path) -> None:
    rows = [{**row, "prompt": f"What {i}?"} for i, row in enumerate(ROWS)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    plain = data.load(DatasetConfig(path=str(path), test_size=0), 0)
    tools = load(path, EnvironmentConfig(tools=("calculator",)), "the run")
    assert plain.train.to_list() == tools.train.to_list()
    assert repr(list(plain.train["mixed"])) == repr([row["mixed"] for row in ROWS])
    assert plain.train[0]["answer"] == "5"


def test_a_prompt_is_the_column_of_that_name_and_no_other(tmp_path: Path) -> None:
    rows = [{"question": "Who?", "target": 1}, {"question": "Why?", "target": 2}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert load(path).train.column_names == ["question", "target"]
    named = load(path, prompt_column="question").train[0]
    assert named["prompt"] == [{"role": "user", "content": "Who?"}]
    assert (named["question"], named["target"]) == ("Who?", 1)
    calculator = EnvironmentConfig(factory="calculator")  # adds nothing to the prompt
    assert load(path, calculator).train[0]["prompt"] == [{"role": "user", "content": "Who?"}]
    own = load(write_jsonl(tmp_path / "own.jsonl", [{"prompt": "Who?"}, {"prompt": None}])).train
    assert [row["prompt"][-1]["content"] for row in own] == ["Who?", ""]
    assert [row["original_prompt"] for row in own] == ["Who?", None]


def test_a_system_prompt_comes_before_what_the_environment_says(tmp_path: Path) -> None:
    loaded = load(write_jsonl(tmp_path / "rows.jsonl", ROWS), system_prompt="Play.")
    assert loaded.train[0]["prompt"] == [{"role": "system", "content": "Play."}, {"role": "user", "content": ""}]


def test_an_answer_is_made_only_where_something_reads_it(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    assert load(path).train[0]["answer"] == 5
    graded = load(path, answer_for="the reward exact_match").train[0]
    assert (graded["answer"], graded["original_answer"]) == ("5", 5)
    without = write_jsonl(tmp_path / "without.jsonl", [{"level": 1}, {"level": 2}])
    with pytest.raises(DataError, match="which the reward exact_match needs"):
        load(without, answer_for="the reward exact_match")


SEVERAL = EnvironmentConfig(factory={"one": "game.py:One", "two": "game.py:Two"})


def test_rows_choose_among_several_environments(tmp_path: Path) -> None:
    rows = [{"environment": name, "level": 1} for name in ("one", "two", "one", "two")]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert [row["environment"] for row in load(path, SEVERAL).train] == ["one", "two", "one", "two"]
    assert load(path).train.column_names == ["original_environment", "level"]  # one environment: a column like others
    with pytest.raises(DataError) as caught:
        load(write_jsonl(tmp_path / "bad.jsonl", [*rows, {"environment": "tow"}, {"level": 3}]), SEVERAL)
    assert "2 of 6 rows" in str(caught.value)
    assert 'line 5: "tow"; line 6: null' in str(caught.value)
    assert "has one, two. Did you mean two?" in str(caught.value)
    with pytest.raises(DataError, match="has no column 'environment', with which a row chooses"):
        load(write_jsonl(tmp_path / "none.jsonl", ROWS), SEVERAL)


def test_several_environments_in_a_mixture(tmp_path: Path) -> None:
    paths = [
        str(write_jsonl(tmp_path / f"{name}.jsonl", [{"environment": name, "level": i} for i in range(3)]))
        for name in ("one", "two")
    ]
    config = DatasetConfig(mixture=MixtureConfig(datasets=[{"path": path} for path in paths]), test_size=0)
    loaded = data.load(config, 0, answer_for=None, environment=SEVERAL)
    assert sorted(row["environment"] for row in loaded.train) == ["one"] * 3 + ["two"] * 3


def test_episodes_without_rows_have_seeds_of_their_own() -> None:
    config = DatasetConfig(train_size=40, test_size=10, validation_fraction=0.25)
    loaded = data.load(config, 0, answer_for=None, environment=GAME)
    seeds = {name: [row["seed"] for row in rows] for name, rows in {"train": loaded.train, **loaded.evaluation}.items()}
    assert {name: len(found) for name, found in seeds.items()} == {"train": 30, "test": 10, "validation": 10}
    every = [seed for found in seeds.values() for seed in found]
    assert len(set(every)) == 50
    assert loaded.train.column_names == ["seed"]
    again = data.load(config, 0, answer_for=None, environment=GAME)
    assert again.train.to_list() == loaded.train.to_list()
    other = data.load(config, 1, answer_for=None, environment=GAME)
    trained = {row["seed"] for row in other.train} | {row["seed"] for row in other.evaluation["validation"]}
    assert not trained & set(seeds["test"])  # whatever the run's seed
    assert trained != {*seeds["train"], *seeds["validation"]}


def test_episodes_without_rows_of_several_environments() -> None:
    config = DatasetConfig(train_size=4, test_size=2, system_prompt="Play.")
    loaded = data.load(config, 0, answer_for=None, environment=SEVERAL)
    assert [row["environment"] for row in loaded.train] == ["one", "two", "one", "two"]
    assert loaded.train[0]["prompt"][0] == {"role": "system", "content": "Play."}
    assert len(loaded.evaluation["test"]) == 2


def test_the_length_limit_keeps_the_types(tmp_path: Path) -> None:
    rows = [{**row, "prompt": "word " * (i + 1)} for i, row in enumerate(ROWS)]
    loaded = load(write_jsonl(tmp_path / "rows.jsonl", rows))
    config = DatasetConfig(path="x", max_prompt_length=2, overlong_prompts="truncate")

    def lengths(prompts: list[Any]) -> list[int]:
        return [len(prompt[-1]["content"].split()) for prompt in prompts]

    cut = data.filter_by_length(loaded, lengths, lambda text, count: " ".join(text.split()[count:]), config)
    assert [row["prompt"][-1]["content"].strip() for row in cut.train] == [
        "word",
        "word word",
        "word word",
        "word word",
    ]
    assert repr([row["state"] for row in cut.train]) == repr([row["state"] for row in ROWS])
