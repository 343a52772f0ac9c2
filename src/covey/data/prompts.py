"""Building the conversation for the model from the text or messages in the data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.config import DatasetConfig


Conversation = list[dict[str, Any]]

_TOOL_KEYS = ("name", "tool_calls", "tool_call_id")
"""What a message has besides role and content in a history of tool calls, as OpenAI writes one."""
_ROLE_NAMES = {"human": "user", "gpt": "assistant", "model": "assistant"}
"""Other names of roles, in datasets with `from` and `value` (ShareGPT's format)."""


def conversation(text: str, dataset: DatasetConfig) -> Conversation:
    """The messages for one question."""
    messages = [{"role": "user", "content": _fill(dataset.user_prompt_template, text)}]
    if dataset.system_prompt:
        messages.insert(0, {"role": "system", "content": dataset.system_prompt})
    return messages


def prompt_column(prompts: Iterable[Conversation], *, as_text: bool = False) -> Any:
    """The Arrow column `prompt`; `as_text`: of JSON text, as prompts are where messages have more than role and
    content."""
    import pyarrow as pa

    if as_text:
        return pa.array([json.dumps(one, default=str) for one in prompts], pa.string())
    return pa.array(prompts, pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))


def reply(value: Any) -> str | None:
    """The text of the assistant's message that ends a conversation; None when it does not end with one."""
    messages = as_messages(value)
    return messages[-1]["content"] if messages and messages[-1]["role"] == "assistant" else None


def as_messages(value: Any) -> Conversation | None:
    """A list of messages with `role` and `content` (or `from` and `value`), or JSON text of one; None when the value is
    neither. Calls of tools and their results stay as they are written; a message with calls needs no content."""
    value = _parsed(value)
    if not isinstance(value, list):
        return None
    found = []
    for message in value:
        if not isinstance(message, dict):
            return None
        role = message.get("role") or message.get("from")
        content = _text(message.get("content") if message.get("content") is not None else message.get("value"))
        calls = message.get("tool_calls") or []
        said = isinstance(content, str) or (content is None and calls and role == "assistant")
        if not (said and isinstance(role, str) and isinstance(calls, list) and all(map(_is_call, calls))):
            return None
        more = {key: message[key] for key in _TOOL_KEYS if message.get(key)}
        found.append({"role": _ROLE_NAMES.get(role, role), "content": content, **more})
    return found


def _is_call(value: Any) -> bool:
    """Whether this is a call of a tool, which has a name."""
    function = value.get("function", value) if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _parsed(value: Any) -> Any:
    """The value of JSON text that may be a list of messages; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return found or value
    return value


def _text(content: Any) -> Any:
    """The text of a message in parts, as in multimodal datasets; else the content itself."""
    if isinstance(content, list) and content and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        texts = [part.get("text") for part in content]
        return "".join(texts) if all(isinstance(text, str) for text in texts) else content
    return content


def question(value: Any, *, drop_reply: bool) -> str:
    """The question of a raw prompt as one text: the same for a text and for a conversation of that one message."""
    messages = [message for message in as_messages(value) or [] if message["role"] != "system"]
    if drop_reply and messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        return str(value).strip()
    return messages[0]["content"].strip() if len(messages) == 1 else json.dumps(messages, sort_keys=True)


class PromptBuilder:
    """Builds conversations, and counts what it changed in those of the data."""

    def __init__(self, dataset: DatasetConfig, *, drop_reply: bool) -> None:
        self._dataset = dataset
        self._drop_reply = drop_reply
        self._replies = self._systems = 0
        self._keys: set[str] = set()

    def build(self, value: Any) -> Conversation | None:
        """The conversation of one raw prompt; None when there is no prompt in it."""
        messages = as_messages(value)
        if messages is None and isinstance(value, str):
            return conversation(value, self._dataset) if value.strip() else None
        if messages is None:
            return None
        held = {key for message in _parsed(value) for key, part in message.items() if part is not None}
        self._keys |= held - {"role", "content", "from", "value", *_TOOL_KEYS}
        if self._drop_reply and messages and messages[-1]["role"] == "assistant":
            messages.pop()
            self._replies += 1
        if not any(message["role"] == "user" for message in messages):
            return None
        if self._dataset.system_prompt:
            kept = [message for message in messages if message["role"] != "system"]
            self._systems += len(kept) < len(messages)
            messages = [{"role": "system", "content": self._dataset.system_prompt}, *kept]
        asked = next(message for message in reversed(messages) if message["role"] == "user")
        asked["content"] = _fill(self._dataset.user_prompt_template, asked["content"])
        return messages

    def notes(self) -> list[str]:
        found = []
        if self._replies:
            found.append(f"the assistant's reply at the end of {self._replies} conversations is not part of the prompt")
        if self._systems:
            found.append(f"dataset.system_prompt replaces the system message of {self._systems} rows")
        if self._keys:
            found.append(f"of messages {', '.join(sorted(self._keys))} are not used")
        return found


def _fill(template: str | None, text: str) -> str:
    """Fill the prompt into its template. Not with `str.format`: mathematics is full of braces."""
    return text if template is None else template.replace("{prompt}", text)
