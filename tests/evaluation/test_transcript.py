"""Conversations with tools as text, of whatever a template's parser or a tool may give."""

from __future__ import annotations

import json
from typing import Any

import pytest

from covey.evaluation.played import plain_message, transcript

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "ü"}}}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "assistant", "content": "Hello"}, "Hello"),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, 'add(a=1, b="ü")'),
        ({"role": "assistant", "tool_calls": [CALL, CALL]}, 'add(a=1, b="ü")\nadd(a=1, b="ü")'),
        ({"role": "assistant", "content": "So:", "tool_calls": [CALL]}, 'So:\nadd(a=1, b="ü")'),
        ({"role": "assistant", "content": "4", "reasoning_content": "2+2"}, "<think>2+2</think>\n4"),
        ({"role": "assistant", "tool_calls": [{"name": "run", "arguments": "x = 1"}]}, "run(x = 1)"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "stop"}}, "odd"]}, "stop()\nunknown()"),
        ({"role": "tool", "name": "add", "content": "{'error': 'no'}"}, "← {'error': 'no'}"),
        (
            {"role": "tool", "content": [{"type": "text", "text": "see "}, {"type": "image", "image": b""}]},
            "← see [image]",
        ),
        ({"role": "tool", "content": 7}, "← 7"),
        ({"role": "assistant"}, ""),
    ],
)
def test_a_message_as_text(message: dict[str, Any], text: str) -> None:
    assert transcript([message]) == text


def test_a_conversation_is_one_line_per_part() -> None:
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]
    assert transcript(messages) == 'add(a=1, b="ü")\n← 3\nIt is 3.'


def test_what_json_cannot_hold_becomes_text() -> None:
    plain = plain_message({"role": "tool", "content": [{"type": "image", "image": object}]})
    assert json.loads(json.dumps(plain)) == {"role": "tool", "content": [{"type": "image", "image": str(object)}]}
