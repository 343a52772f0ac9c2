"""A tool call that cannot be parsed is counted; it ends the episode, or is reported to the model."""

from __future__ import annotations

import pytest
from tests.environments.test_episodes import ADD, END, Written, episode

from chat_templates import add, make_tokenizer
from covey.environments.chat import ToolChat
from covey.environments.episodes import run_episodes

BROKEN = {
    "qwen3": ('<tool_call>\n{"name": "add", "arguments": {"a": 1,\n</tool_call>', "<|im_end|>"),
    "qwen2_5": ("<tool_call>\nadd(1, 2)\n</tool_call>", "<|im_end|>"),
    "llama3_1": ('{"name": "add", "parameters": {"a": 1', "<|eot_id|>"),
}


@pytest.mark.parametrize("template", BROKEN)
@pytest.mark.parametrize("reports", [False, True])
def test_a_call_that_cannot_be_parsed(template: str, reports: bool) -> None:
    chat = ToolChat.of(make_tokenizer(template))
    text, end = BROKEN[template]
    one, turns = episode(chat, add=add), [text + end, "Three." + end]
    run_episodes([one], chat, Written(chat, turns), max_turns=4, max_completion_length=1000, reports_malformed=reports)
    assert (one.ended, one.malformed, one.calls, one.turns) == ("answered", 1, 0, 2 if reports else 1)
    roles = [message["role"] for message in one.completion]
    assert roles == (["assistant", "tool", "assistant"] if reports else ["assistant"])
    if reports:
        assert "could not be parsed" in one.completion[1]["content"]
        assert "could not be parsed" in chat.tokenizer.decode(one.ids)


def test_answers_whole_calls_and_cut_turns_are_not_malformed() -> None:
    chat = ToolChat.of(make_tokenizer("qwen3"))
    for turns in ([f"1 < 2, <b>three</b>.{END}"], [ADD, f"Three.{END}"], ['<tool_call>\n{"name": '], [END]):
        one = episode(chat, add=add)
        run_episodes([one], chat, Written(chat, turns), max_turns=4, max_completion_length=1000, reports_malformed=True)
        assert one.malformed == 0
    without = episode(chat)
    run_episodes([without], chat, Written(chat, [f"<tool_call>{END}"]), max_turns=4, max_completion_length=1000)
    assert without.malformed == 0


def test_a_model_that_only_writes_malformed_calls_is_stopped_by_the_limit_of_turns() -> None:
    chat = ToolChat.of(make_tokenizer("qwen3"))
    one, turns = episode(chat, add=add), ["".join(BROKEN["qwen3"])] * 9
    run_episodes([one], chat, Written(chat, turns), max_turns=3, max_completion_length=5000, reports_malformed=True)
    assert (one.ended, one.turns, one.malformed) == ("max_turns", 3, 3)
