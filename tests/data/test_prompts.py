"""Prompts that are more than texts of users: histories of tool calls, and beginnings of the assistant's turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from covey import data
from covey.config import DatasetConfig, MixtureConfig
from covey.config.groups.environment import EnvironmentConfig
from covey.data.load import read_prompts, write_rows
from covey.errors import DataError
from data_files import write_jsonl

ASKED = {"role": "user", "content": "Weather?"}


def call(arguments: Any) -> dict[str, Any]:
    """A message as OpenAI writes it."""
    function = {"name": "weather", "arguments": arguments}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


RESULT = {"role": "tool", "content": "sunny", "name": "weather", "tool_call_id": "call_1"}
HISTORIES: list[list[dict[str, Any]]] = [
    [ASKED, call('{"city": "Paris"}'), RESULT],
    [{"role": "system", "content": "Be brief."}, ASKED, call({"days": [1, 2.5], "at": {"x": None}}), RESULT, ASKED],
    [ASKED],
    [ASKED, {**call("{}"), "content": "Let me see."}, {"role": "tool", "content": "rain", "tool_call_id": "call_1"}],
]
ROWS = [{"prompt": prompt, "answer": str(i)} for i, prompt in enumerate(HISTORIES)]


def load(path: Path, environment: EnvironmentConfig | None = None, **keys: Any) -> data.LoadedData:
    config = DatasetConfig(path=str(path), **{"test_size": 0, **keys})
    return data.load(config, 0, answer_for=keys.get("answer_column"), environment=environment)


def error_of(path: Path, environment: EnvironmentConfig | None = None, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(path, environment, **keys)
    return str(caught.value)


def test_histories_of_tool_calls_are_prompts_as_they_are_written(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    whole = tmp_path / "rows.json"
    whole.write_text(json.dumps(ROWS))
    texts = write_jsonl(tmp_path / "texts.jsonl", [{**row, "prompt": json.dumps(row["prompt"])} for row in ROWS])
    given = Path(write_rows(ROWS, tmp_path / "given")["dataset.path"])
    for path in (lines, whole, texts, given):
        loaded = load(path)
        assert repr(list(loaded.train["prompt"])) == repr(HISTORIES), path
        assert repr(loaded.train.select([1])[0]["prompt"]) == repr(HISTORIES[1])
        assert loaded.notes == []
    assert "original_prompt" not in load(lines).train.column_names  # it would be a copy
    assert [row["prompt"] for row in read_prompts(str(lines))] == HISTORIES
    half = load(lines, test_size=100, test_fraction=0.5).evaluation["test"]
    assert all(row["prompt"] in HISTORIES for row in half)


def test_histories_in_files_of_arrow(tmp_path: Path) -> None:
    """There every message has every key, null where it was not written."""
    prompts = [HISTORIES[0], HISTORIES[3]]
    rows = datasets.Dataset.from_list([{"prompt": prompt, "answer": "1"} for prompt in prompts])
    rows.to_parquet(str(tmp_path / "rows.parquet"))
    rows.save_to_disk(str(tmp_path / "saved"))
    for path in (tmp_path / "rows.parquet", tmp_path / "saved"):
        assert list(load(path).train["prompt"]) == prompts


def test_the_reply_that_ends_a_history_is_the_answer(tmp_path: Path) -> None:
    rows = [{"messages": [*history, {"role": "assistant", "content": f"{i}!"}]} for i, history in enumerate(HISTORIES)]
    config = DatasetConfig(
        path=str(write_jsonl(tmp_path / "x.jsonl", rows)), test_size=0, user_prompt_template="Q: {prompt}"
    )
    train = data.load(config, 0).train
    assert list(train["answer"]) == ["0!", "1!", "2!", "3!"]
    asked = {"role": "user", "content": "Q: Weather?"}  # only the last question is in the template
    assert train[0]["prompt"] == [asked, *HISTORIES[0][1:]]
    assert train[1]["prompt"] == [*HISTORIES[1][:-1], asked]


def test_histories_in_a_mixture_and_cut_to_a_length(tmp_path: Path) -> None:
    plain = [{"prompt": [{"role": "user", "content": f"one two {i}"}], "answer": "1"} for i in range(4)]
    sources = [{"path": str(write_jsonl(tmp_path / f"{i}.jsonl", rows))} for i, rows in enumerate((ROWS, plain))]
    config = DatasetConfig(mixture=MixtureConfig(datasets=tuple(sources)), test_size=0)
    loaded = data.load(config, 0)
    key = json.dumps
    assert sorted(map(key, loaded.train["prompt"])) == sorted(map(key, [*HISTORIES, *(row["prompt"] for row in plain)]))

    def lengths(prompts: list[Any]) -> list[int]:
        return [sum(len((message["content"] or "").split()) for message in prompt) for prompt in prompts]

    limit = DatasetConfig(path="x", max_prompt_length=2, overlong_prompts="truncate")
    cut = data.filter_by_length(loaded, lengths, lambda text, count: " ".join(text.split()[count:]), limit)
    found = list(cut.train["prompt"])
    assert HISTORIES[0] in found
    assert [{"role": "user", "content": "two 3"}] in found


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None},
        {"role": "user", "content": None, "tool_calls": call("{}")["tool_calls"]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": "{}"}}]},
        {"role": "assistant", "content": None, "tool_calls": "weather()"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": "weather"}]},
    ],
)
def test_messages_without_content_and_calls_are_no_prompt(message: dict[str, Any], tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [ROWS[0], {"prompt": [ASKED, message, RESULT], "answer": "1"}])
    assert "1 of 2 rows of" in error_of(path)
    assert "have no prompt in column 'prompt' (line 2: [{" in error_of(path)


def test_a_call_without_its_result_cannot_be_continued(tmp_path: Path) -> None:
    rows = [ROWS[0], {"prompt": HISTORIES[0][:2], "answer": "1"}]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    with pytest.raises(DataError) as caught:
        read_prompts(str(path))
    for message in (error_of(path), str(caught.value)):
        assert "1 of 2 rows of" in message
        assert "end with a call of a tool in column 'prompt' (line 2: [{" in message
        assert 'Add its result, as a {"role": "tool", …} message' in message


def test_an_assistant_s_message_at_the_end_is_a_prefill_unless_it_is_the_answer(tmp_path: Path) -> None:
    begun = [ASKED, {"role": "assistant", "content": "<think>\n"}]
    path = write_jsonl(tmp_path / "x.jsonl", [{"prompt": begun, "level": i, "answer": "1"} for i in range(2)][:1])
    assert load(path).train[0]["prompt"] == begun
    bare = write_jsonl(tmp_path / "bare.jsonl", [{"prompt": begun}])
    assert load(bare).train[0]["prompt"] == begun  # nothing needs an answer
    answered = data.load(DatasetConfig(path=str(bare), test_size=0), 0, answer_for="the reward accuracy").train[0]
    assert (answered["prompt"], answered["answer"]) == ([ASKED], "<think>")
    whole = write_jsonl(tmp_path / "whole.jsonl", [{"messages": begun}])
    assert load(whole).train[0]["prompt"] == [ASKED]


def test_a_prefill_is_refused_with_tools(tmp_path: Path) -> None:
    begun = [ASKED, {"role": "assistant", "content": "It is"}]
    path = write_jsonl(tmp_path / "x.jsonl", [ROWS[0], {"prompt": begun, "answer": "1"}])
    tools = EnvironmentConfig(tools=("calculator",))
    message = error_of(path, tools)
    assert "1 of 2 rows of" in message
    assert "cannot be continued with tools or an environment, in column 'prompt' (line 2: [{" in message
    with pytest.raises(DataError, match="cannot be continued with tools"):
        read_prompts(str(path), environment=tools)
    assert len(load(path, EnvironmentConfig(rollout_func="own.py:play")).train) == 2  # it drives its own episodes


def test_a_column_of_tools_is_named(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    path = write_jsonl(tmp_path / "x.jsonl", [{**row, "tools": [tool]} for row in ROWS])
    loaded = load(path)
    assert loaded.train[0]["tools"] == [tool]
    (note,) = loaded.notes
    assert "'tools' may belong to the question, and the model does not see it" in note
    assert loaded.warnings == {note}


def test_rows_with_one_prompt_are_refused_where_something_else_differs(tmp_path: Path) -> None:
    rows = [{"instruction": "Sum up.", "input": f"text {i}", "answer": i, "source": "x"} for i in range(4)]
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    message = error_of(path)
    assert message.startswith(
        f"All 4 rows of {path} have the same prompt, column 'instruction' (\"Sum up.\"), and differ"
    )
    assert "what the model does not see: input, answer. Write" in message
    assert "dataset.prompt_column=NAME" in message
    with pytest.raises(DataError, match="have the same prompt, column 'instruction'"):
        data.load(DatasetConfig(mixture=MixtureConfig(datasets=[{"path": str(path)}])), 0)
    chosen = load(path, prompt_column="input")
    assert chosen.train[3]["prompt"] == [{"role": "user", "content": "text 3"}]
    systems = [{**row, "prompt": [{"role": "system", "content": f"{i}"}, ASKED]} for i, row in enumerate(rows)]
    assert len(load(write_jsonl(tmp_path / "systems.jsonl", systems)).train) == 4
    one = load(write_jsonl(tmp_path / "one.jsonl", rows[:1]))
    copies = load(write_jsonl(tmp_path / "copies.jsonl", rows[:1] * 3))
    assert (len(one.train), len(copies.train)) == (1, 3)


def test_rows_of_an_environment_may_have_one_prompt(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"prompt": "Play.", "level": i} for i in range(4)])
    assert len(load(path, EnvironmentConfig(factory="number_guess")).train) == 4
    assert len(load(path, EnvironmentConfig(rollout_func="own.py:play")).train) == 4
    assert "differ only in what the model does not see: level" in error_of(
        path, EnvironmentConfig(tools=("calculator",))
    )


def test_the_message_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    bad = {"role": "tool", "content": None}
    path = write_jsonl(tmp_path / "x.jsonl", [*ROWS, {**ROWS[0], "prompt": [ASKED, bad]}])
    assert 'Message 2 of line 5 has none: {"role": "tool", "content": null}.' in error_of(path)
