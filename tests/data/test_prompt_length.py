"""Prompts that are too long: dropped rows, truncation, notes. A token here is one word."""

from __future__ import annotations

import re
from typing import Any

import datasets
import pytest

from covey import data
from covey.config import DatasetConfig
from covey.errors import DataError

TEMPLATE = 3  # words that this file's chat template adds to each message


def length(prompts: list[list[dict[str, str]]]) -> list[int]:
    return [sum(len(message["content"].split()) + TEMPLATE for message in prompt) for prompt in prompts]


def cut_left(text: str, tokens: int) -> str:
    return " ".join(text.split()[tokens:])


def loaded_of(*users: str, system: str = "Be brief.") -> data.LoadedData:
    rows = [
        {
            "prompt": [{"role": "system", "content": system}, {"role": "user", "content": text}],
            "answer": str(i),
            "level": i,
        }
        for i, text in enumerate(users)
    ]
    return data.LoadedData(datasets.Dataset.from_list(rows), {"test": datasets.Dataset.from_list(rows)}, ["first"])


def config(**keys: Any) -> DatasetConfig:
    return DatasetConfig(task="arithmetic", **keys)


def test_without_a_limit_nothing_is_counted() -> None:
    loaded = loaded_of("a b c")
    assert data.filter_by_length(loaded, None, None, config()) is loaded  # type: ignore[arg-type]


def test_overlong_rows_are_dropped_and_counted() -> None:
    loaded = loaded_of("one two", "one two three", "one")
    kept = data.filter_by_length(loaded, length, cut_left, config(max_prompt_length=10))  # 2 + 3 + 2 + 3 = 10
    for rows, before in ((kept.train, loaded.train), (kept.evaluation["test"], loaded.evaluation["test"])):
        assert rows.to_list() == [row for row in before.to_list() if row["level"] != 1]
    why = "because they are longer than 10 tokens (dataset.max_prompt_length)"
    train, test = f"1 of 3 training prompts are dropped, {why}", f"1 of 3 held-out prompts are dropped, {why}"
    assert kept.notes == ["first", train, test]
    same = data.filter_by_length(loaded, length, cut_left, config(max_prompt_length=11))
    assert (same.train.to_list(), same.notes) == (loaded.train.to_list(), ["first"])


def test_truncation_keeps_the_system_prompt_and_the_end() -> None:
    loaded = loaded_of("one two", "one two three four")
    kept = data.filter_by_length(loaded, length, cut_left, config(max_prompt_length=10, overlong_prompts="truncate"))
    assert kept.train[0] == loaded.train[0]
    assert kept.train[1] == {
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "three four"}],
        "answer": "1",
        "level": 1,
    }
    assert kept.notes[1] == (
        "1 of 2 training prompts were longer than 10 tokens; the beginning of their last user message is cut off"
    )


def test_truncation_cuts_the_last_user_message_of_a_history() -> None:
    turns = [("user", "one two three"), ("assistant", "four five"), ("user", "six seven eight nine")]
    prompt = [{"role": role, "content": text} for role, text in turns]
    rows = datasets.Dataset.from_list([{"prompt": prompt, "answer": "1"}])
    settings = config(max_prompt_length=16, overlong_prompts="truncate")  # 9 words and 9 for the template: two too many
    kept = data.filter_by_length(data.LoadedData(rows, {}, []), length, cut_left, settings)
    assert [message["content"] for message in kept.train[0]["prompt"]] == ["one two three", "four five", "eight nine"]


def test_a_text_that_is_still_too_long_is_truncated_again() -> None:
    """A tokenizer may need more tokens for the rest than for the same text within the whole."""
    calls = []

    def stubborn(text: str, tokens: int) -> str:
        calls.append(tokens)
        return " ".join(text.split()[max(1, tokens // 2) :])

    loaded = data.LoadedData(loaded_of("a b c d e f g h").train, {}, [])
    kept = data.filter_by_length(loaded, length, stubborn, config(max_prompt_length=10, overlong_prompts="truncate"))
    assert kept.train[0]["prompt"][1]["content"] == "g h"
    assert calls == [6, 3, 2, 1]


def test_a_prompt_that_cannot_be_truncated_enough_is_dropped() -> None:
    rows = [loaded_of("a b c").train[0], loaded_of("a", system="a very long system prompt").train[0]]
    loaded = data.LoadedData(datasets.Dataset.from_list(rows), {}, [])
    kept = data.filter_by_length(loaded, length, cut_left, config(max_prompt_length=10, overlong_prompts="truncate"))
    assert [row["prompt"][1]["content"] for row in kept.train] == ["b c"]
    assert kept.notes[1].startswith("1 of 2 training prompts are dropped, because they are longer than 10 tokens even")


@pytest.mark.parametrize("overlong", ["drop", "truncate"])
def test_nothing_left_is_an_error(overlong: str) -> None:
    settings = config(max_prompt_length=5, overlong_prompts=overlong)
    expected = "All 2 training prompts are longer than dataset.max_prompt_length=5 tokens"
    with pytest.raises(DataError, match=re.escape(expected) + r".*the shortest has 9\."):
        data.filter_by_length(loaded_of("a", "b c"), length, cut_left, settings)
