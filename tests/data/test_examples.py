"""Examples for supervised training: read from files and runs, the right ones, each once, none of held-out problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey.config import Config, load, to_yaml
from covey.data.examples import read_examples
from covey.errors import DataError
from covey.runlog.completions import write_completions
from covey.runlog.directory import RunDirectory


def read(rows: list[dict[str, Any]], folder: Path, held_out: tuple[Any, ...] = (), **settings: Any) -> Any:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_examples(supervised(file, **settings), held_out)


def supervised(rows: Path, seed: int = 0, **settings: Any) -> Config:
    words = [f"sft.{name}={value}" for name, value in settings.items()]
    data = ["dataset=none", "dataset.user_prompt_template='{prompt} Briefly.'"]
    return load([f"sft.rows={rows}", f"seed={seed}", *words, *data])


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_prompt_and_completion_as_texts_and_as_messages(tmp_path: Path) -> None:
    found, notes = read(
        [
            {"prompt": "1 + 1?", "completion": " 2\n"},
            {"prompt": json.dumps([user("2 + 2?")]), "completion": json.dumps([said("4")])},
            {"prompt": "1 + 1?", "completion": " 2\n"},
        ],
        tmp_path,
    )
    assert [tuple(one) for one in found] == [("1 + 1?", " 2\n"), ([user("2 + 2?")], [said("4")])]
    assert notes == ["sft.rows: 1 of 3 rows are left out, the same as another"]


def test_conversations_are_split_before_the_first_answer(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Be brief."}, user("a"), said("b"), user("c"), said("d")]
    found, _ = read([{"messages": talk}], tmp_path)
    assert [tuple(one) for one in found] == [(talk[:2], talk[2:])]


@pytest.mark.parametrize(
    ("row", "lacks"),
    [
        ({"messages": [user("a")]}, "no completion"),
        ({"prompt": "a", "completion": ""}, "no completion"),
        ({"prompt": "a", "completion": [user("b")]}, "no completion"),
        ({"prompt": None, "completion": "b"}, "no prompt"),
        ({"prompt": 3, "completion": "b"}, "no prompt"),
        ({"prompt": "a", "completion": ["x", "y"]}, "no completion"),
        ({"prompt": "a", "completion": [{"content": "b"}]}, "no completion"),
        ({"prompt": [{"role": "user", "content": None}], "completion": "b"}, "no prompt"),
        ({"question": "a", "answer": "b"}, "no column looks like what is to be learnt"),
    ],
)
def test_a_row_without_either_is_named(row: dict[str, Any], lacks: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=lacks):
        read([row], tmp_path)


@pytest.mark.parametrize(
    ("column", "right", "wrong"),
    [("outcome", "right", None), ("accuracy", 1.0, 0.0), ("reward", 1.2, float("nan")), ("reward", "1.0", [1.0])],
)
def test_only_right_ones_where_that_is_known(column: str, right: Any, wrong: Any, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": "x", column: right}, {"prompt": "a", "completion": "y", column: wrong}]
    found, notes = read(rows, tmp_path)
    assert [one.completion for one in found] == ["x"]
    assert notes == ["sft.rows: 1 of 2 rows are left out, not right"]
    assert len(read(rows, tmp_path, right_only=False)[0]) == 2
    with pytest.raises(DataError, match=r"leaves nothing to learn\. sft\.rows: 1 of 1 rows are left out, not right"):
        read(rows[1:], tmp_path)


def test_a_prompt_column_is_read_whatever_its_usual_name(tmp_path: Path) -> None:
    found, notes = read([{"input": "a", "output": "b"}], tmp_path)
    assert [tuple(one) for one in found] == [("a", "b")]
    assert notes == []
    _, notes = read([{"instruction": "a", "input": "c", "output": "b"}], tmp_path)
    assert notes == [f"sft.rows: input of {tmp_path / 'rows.jsonl'} is not read"]


def test_held_out_problems_are_left_out_whatever_their_system_message(tmp_path: Path) -> None:
    rows = [{"prompt": one, "completion": "x"} for one in ("held", "free")]
    held = [{"role": "system", "content": "Think."}, user("held Briefly.")]
    rows += [{"prompt": [user(text)], "completion": "x"} for text in ("Held", "held  briefly.")]
    rows += [{"prompt": [user("b")], "completion": [said("x"), user("held"), said("y")]}]
    found, notes = read(rows, tmp_path, (held,))
    assert [one.prompt for one in found] == ["free"]
    assert notes == ["sft.rows: 4 of 5 rows are left out, of held-out problems"]


def test_what_belongs_to_an_example_and_is_not_read_is_named(tmp_path: Path) -> None:
    talk = [user("a"), {**said("b"), "reasoning_content": "c"}]
    found, notes = read([{"messages": talk, "response": "b", "tools": []}], tmp_path)
    assert [tuple(one) for one in found] == [([user("a")], [said("b")])]
    assert notes == [f"sft.rows: reasoning_content, tools of {tmp_path / 'rows.jsonl'} is not read"]


def test_per_prompt_draws_by_the_seed(tmp_path: Path) -> None:
    rows = [{"prompt": one, "completion": str(at)} for one in "ab" for at in range(8)]
    found, notes = read(rows, tmp_path, per_prompt=2)
    assert [one.prompt for one in found] == ["a", "a", "b", "b"]
    assert len(set(found)) == 4
    assert notes == ["sft.rows: 12 different completions are left out, sft.per_prompt=2"]
    file = tmp_path / "rows.jsonl"
    other = [read_examples(supervised(file, seed, per_prompt=2))[0] for seed in range(1, 5)]
    assert read_examples(supervised(file, per_prompt=2)) == (found, notes)
    assert any(one != found for one in other)


def test_the_completions_of_a_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    run.config.write_text(to_yaml(load()), encoding="utf-8")
    with pytest.raises(DataError, match="the run has no completions"):
        read_examples(supervised(run.root))
    for step in (1, 2):
        columns = {
            "prompt": [[user("a")]] * 3,
            "completion": [[said(f"{step}")], [said("wrong")], [said("cut")]],
            "outcome": ["right", "wrong", "right"],
            "truncated": [False, False, True],
        }
        write_completions(run.completions, step, columns)
    found, notes = read_examples(supervised(run.root))
    assert [tuple(one) for one in found] == [([user("a")], "1"), ([user("a")], "2")]
    assert notes[1] == "sft.rows: 2 of 6 rows are left out, cut off at the length limit"


def test_a_run_that_nothing_judges_or_with_tools_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    run.config.write_text(to_yaml(load()), encoding="utf-8")
    write_completions(run.completions, 1, {"prompt": ["a"], "completion": ["b"], "mine": [0.0]})
    with pytest.raises(DataError, match="the run has no grader to say what is right"):
        read_examples(supervised(run.root))
    assert len(read_examples(supervised(run.root, right_only=False))[0]) == 1
    run.config.write_text(to_yaml(load(["environment=calculator"])), encoding="utf-8")
    with pytest.raises(DataError, match="the run has an environment or tools"):
        read_examples(supervised(run.root))
