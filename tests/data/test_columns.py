"""Which columns of the data are prompts and answers, and what their values become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey import data
from covey.answers.tasks import coloring_modes
from covey.config import DatasetConfig
from covey.data.columns import number_of_modes
from covey.errors import DataError
from data_files import error_of, load_file, question, write_jsonl


def test_usual_column_names_are_found_and_configured_ones_take_precedence(tmp_path: Path) -> None:
    rows = [{"problem": f"p{i}", "query": f"q{i}", "solution": f"s{i}", "label": i} for i in range(5)]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    found = load_file(path).train[0]
    assert (question(found)[0], found["answer"][0]) == ("p", "s")
    named = load_file(path, prompt_column="query", answer_column="label").train[0]
    assert question(named) == f"q{named['label']}"
    assert named["answer"] == str(named["label"])


def test_the_error_of_a_missing_column_lists_the_existing_ones(tmp_path: Path) -> None:
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
def test_values_that_are_not_answers(tmp_path: Path, value: Any) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"question": "q", "answer": value}] * 2)
    message = error_of(path, test_size=0)
    assert "2 of 2 rows" in message
    assert "no answer that can be read from column 'answer' (line 1: " in message


@pytest.mark.parametrize("value", [None, "", [], [{"role": "user"}], [{"role": "system", "content": "s"}], 5])
def test_values_that_are_not_prompts(tmp_path: Path, value: Any) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"prompt": value, "answer": 1}] * 2)
    message = error_of(path, test_size=0)
    assert "2 of 2 rows" in message
    assert "no prompt in column 'prompt' (line 1: " in message


@pytest.mark.parametrize("value", ["many", 2.5, -1, True, [2]])
def test_numbers_of_right_answers_that_are_none(tmp_path: Path, value: Any) -> None:
    """Evaluations divide by them, long after the data were read."""
    path = write_jsonl(tmp_path / "x.jsonl", [{"prompt": "p", "answer": 1, "num_modes": value}] * 2)
    message = error_of(path, test_size=0)
    assert "2 of 2 rows" in message
    assert "no number of right answers in column 'num_modes' (line 1: " in message


def test_numbers_of_right_answers() -> None:
    """Also as tools write whole numbers that stand beside missing ones."""
    read = [number_of_modes(value) for value in (3, "3", 3.0, "3.0", 0, None, "", float("nan"))]
    assert read == [3, 3, 3, 3, 0, None, None, None]


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


def test_the_reply_in_messages_is_not_in_the_prompt(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    loaded = load_file(write_jsonl(tmp_path / "x.jsonl", [{"messages": turns, "answer": 2}] * 2))
    assert loaded.train[0]["prompt"] == turns[:1]
    assert any("reply at the end of 1 conversations" in note for note in loaded.notes)


def test_messages_as_json_text_are_messages(tmp_path: Path) -> None:
    def asked(i: int) -> list[dict[str, str]]:
        return [{"role": "system", "content": "s"}, {"role": "user", "content": f"q{i} [1]"}]

    reply = {"role": "assistant", "content": "7"}
    rows = [{"messages": json.dumps([*asked(i), reply]), "number": i} for i in range(6)]
    write_jsonl(tmp_path / "text.jsonl", rows)
    write_jsonl(tmp_path / "lists.jsonl", [{**row, "messages": json.loads(str(row["messages"]))} for row in rows])
    (tmp_path / "text.csv").write_text(
        "prompt,answer\n" + "".join(f'"{json.dumps(asked(i)).replace(chr(34), chr(34) * 2)}",7\n' for i in range(6))
    )
    for name in ("text.jsonl", "text.csv"):
        for found, same in zip(
            load_file(tmp_path / name).train, load_file(tmp_path / "lists.jsonl").train, strict=True
        ):
            assert (found["prompt"], found["answer"]) == (same["prompt"], "7")
            assert [message["role"] for message in found["prompt"]] == ["system", "user"]
    texts = ["[1, 2] is what?", "[]", '["a"]', '[{"role": "user"}]', '{"role": "user", "content": "q"}']
    path = write_jsonl(tmp_path / "plain.jsonl", [{"prompt": text, "answer": "1"} for text in texts])
    assert [question(row) for row in load_file(path, test_size=0).train] == texts


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("instruction", {"input": "x"}),
        ("question", {"choices": ["a", "b"]}),
        ("question", {"context": "c", "System": "s"}),
        ("problem", {"options": {"A": "1"}, "instruction": "q"}),
    ],
)
def test_columns_that_may_belong_to_the_question_are_named(tmp_path: Path, prompt: str, parts: dict[str, Any]) -> None:
    rows = [{prompt: f"q{i}", **parts, "input_length": i, "answer": "1"} for i in range(5)]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    (note,) = load_file(path, test_size=0).notes
    assert f"the prompt is column '{prompt}' alone; {', '.join(map(repr, parts))} may belong to the question" in note
    write_jsonl(path, [{**row, **dict.fromkeys(parts, "")} for row in rows])
    assert load_file(path, test_size=0).notes == []  # there is nothing in them


def test_columns_of_several_kinds(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "answer": 1, "extra": [1], "id": 2**70},
        {"question": "b", "answer": "x", "extra": "text", "completions": 3},
    ]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    loaded = load_file(path, test_size=0)
    assert loaded.train["answer"] == ["1", "x"]
    assert loaded.train["extra"] == [[1], "text"]
    assert loaded.train["id"] == [2**70, None]
    assert loaded.train["original_completions"] == [None, 3]
    assert "completions" not in loaded.train.column_names
    assert {note.split("'")[1] for note in loaded.notes} == {"completions"}
    assert "1 of 2 rows" in error_of(path, prompt_column="extra", test_size=0)


def test_short_answers_are_preferred_to_worked_solutions_in_any_case(tmp_path: Path) -> None:
    rows = [{"Problem": "p", "Solution": "long", "Expected_Answer": 3}] * 2
    found = load_file(write_jsonl(tmp_path / "x.jsonl", rows)).train[0]
    assert (question(found), found["answer"]) == ("p", "3")


def test_the_answer_inside_an_object(tmp_path: Path) -> None:
    """The format of verl's files: messages in `prompt`, the answer in `reward_model`."""
    asked = [{"role": "user", "content": "1 + 1?"}]
    rows = [{"prompt": asked, "reward_model": {"style": "rule", "ground_truth": "2"}, "data_source": "x"}] * 2
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    row = load_file(path).train[0]
    assert (row["prompt"], row["answer"], row["data_source"]) == (asked, "2", "x")
    assert row["reward_model"]["style"] == "rule"
    assert load_file(path, answer_column="reward_model.style").train[0]["answer"] == "rule"
    message = error_of(path, answer_column="reward_model.ground_thruth")
    assert "no column 'reward_model.ground_thruth'" in message
    assert message.endswith("Did you mean reward_model.ground_truth?")


def test_the_reply_is_the_answer_without_an_answer_column(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "It is \\boxed{2}."},
    ]
    loaded = load_file(write_jsonl(tmp_path / "x.jsonl", [{"messages": turns}] * 2), answer_extractor="boxed")
    row = loaded.train[0]
    assert (row["prompt"], row["answer"], row["messages"]) == (turns[:-1], "2", turns)
    assert any("the answer is the assistant's reply that ends 'messages'" in note for note in loaded.notes)
    unanswered = write_jsonl(tmp_path / "y.jsonl", [{"messages": turns}, {"messages": turns[:-1]}])
    message = error_of(unanswered, test_size=0)
    assert "1 of 2 rows" in message
    assert "read from the reply that ends column 'messages' (line 2: [{" in message


def test_messages_in_parts_of_text_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]
    row = {"prompt": [{"role": "user", "content": parts}], "answer": "2"}
    loaded = load_file(write_jsonl(tmp_path / "x.jsonl", [row]), test_size=0)
    assert loaded.train[0]["prompt"] == [{"role": "user", "content": "1 + 1?"}]
    assert loaded.train[0]["original_prompt"] == row["prompt"]
    row["prompt"] = [{"role": "user", "content": [*parts, {"type": "image", "text": None}]}]
    assert "1 of 1 rows" in error_of(write_jsonl(tmp_path / "x.jsonl", [row]), test_size=0)


def test_messages_with_from_and_value(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}]
    row = load_file(write_jsonl(tmp_path / "x.jsonl", [{"conversations": turns}] * 2)).train[0]
    assert row["prompt"] == [{"role": "user", "content": "1 + 1?"}]
    assert row["answer"] == "2"


@pytest.mark.parametrize(
    ("text", "extractor", "answer"),
    [
        ("so x = 3, y = 4", r"regex:= (\d+)", "4"),
        ("so x = 3, y = 4", r"regex:[xy] = \d", "y = 4"),
        (r"thus \boxed{\frac{1}{2}}.", "boxed", r"\frac{1}{2}"),
        ("<answer> 5 </answer>", "answer_tag", "5"),
    ],
)
def test_extractors(tmp_path: Path, text: str, extractor: str, answer: str) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"question": "q", "solution": text}] * 2)
    assert load_file(path, answer_extractor=extractor).train[0]["answer"] == answer
    write_jsonl(path, [{"question": "q", "solution": "none"}] * 2)
    assert f"dataset.answer_extractor={extractor} takes" in error_of(path, answer_extractor=extractor, test_size=0)


def test_an_answer_with_numbers_and_target_becomes_json_text(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": {"target": 98, "numbers": [44, 19, 35]}}] * 2
    row = load_file(write_jsonl(tmp_path / "x.jsonl", rows)).train[0]
    assert json.loads(row["answer"]) == {"numbers": [44, 19, 35], "target": 98}


def test_an_answer_that_is_a_graph_becomes_json_text(tmp_path: Path) -> None:
    graphs = [{"vertices": "AB", "edges": ["AB"], "given": {name: "red"}} for name in "ABBA"]
    rows = [{"question": f"q {i}", "answer": graph} for i, graph in enumerate(graphs)]
    loaded = load_file(write_jsonl(tmp_path / "x.jsonl", rows)).train
    assert {len(coloring_modes(row["answer"]) or ()) for row in loaded} == {2}


def test_the_error_suggests_the_nearest_column(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"problm": "p", "answer": "1"}] * 2)
    assert error_of(path).endswith("Did you mean problm?")
    assert error_of(path, prompt_column="problem").endswith("Did you mean problm?")


def test_answers_may_be_missing_where_nothing_needs_them(tmp_path: Path) -> None:
    rows = [{"problem": f"Write line {n}.", "kind": "a"} for n in range(10)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"like the answer \(one of .*gold\), which the reward accuracy needs; it"):
        data.load(DatasetConfig(path=str(file)), 0, answer_for="the reward accuracy")
    found = data.load(DatasetConfig(path=str(file)), 0, answer_for=None)
    assert found.train.column_names == found.evaluation["test"].column_names == ["prompt", "problem", "kind"]
    assert len(found.train) == 8
    with pytest.raises(DataError, match=r"no column 'gold', which dataset\.answer_column names"):
        data.load(DatasetConfig(path=str(file), answer_column="gold"), 0, answer_for=None)


def test_answers_that_nothing_needs_are_read_if_all_of_them_can_be(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}?", "solution": float(n)}) + "\n" for n in range(5)))
    found = data.load(DatasetConfig(path=str(file), test_size=0), 0, answer_for=None)
    assert found.train["answer"] == ["0", "1", "2", "3", "4"]
    assert found.train["solution"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    file.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": {"word": str(n)}}) + "\n" for n in range(5)))
    with pytest.raises(DataError, match=r"5 of 5 rows .* have no answer that can be read from column 'answer'"):
        data.load(DatasetConfig(path=str(file), test_size=0), 0)
    found = data.load(DatasetConfig(path=str(file), test_size=0), 0, answer_for=None)
    assert found.train[3]["answer"] == {"word": "3"}  # as it is, for a reward that reads it
    assert any("no reward or grader needs one, so the column stays as it is" in note for note in found.notes)


def test_conversations_that_end_with_the_user_have_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    chat = [{"role": "user", "content": "Hello"}]
    file.write_text(json.dumps({"messages": chat}) + "\n" + json.dumps({"messages": chat}) + "\n")
    found = data.load(DatasetConfig(path=str(file), test_size=0), 0, answer_for=None)
    assert found.train.column_names == ["prompt", "messages"]
    assert found.train[0]["prompt"] == chat
    with pytest.raises(DataError, match="no answer that can be read from the reply that ends column 'messages'"):
        data.load(DatasetConfig(path=str(file), test_size=0), 0)
