"""What an episode leaves behind, and conversations with tools as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]


def transcript(messages: Iterable[Message]) -> str:
    """A completion's messages as text: what the model wrote, its calls as `name(argument=value)`, and `← result`."""
    return "\n".join(filter(None, map(message_text, messages)))


def message_text(message: Message) -> str:
    """One message as text, see `transcript`."""
    if message.get("role") == "tool":
        return f"← {content_text(message.get('content'))}"
    calls = [call_text(call) for call in calls_of(message)]
    return "\n".join(filter(None, [reasoning_of(message), content_text(message.get("content")), *calls]))


def calls_of(message: Message) -> list[tuple[str, Any]]:
    """The names and the arguments of the calls in a message of the model."""
    found = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        found.append((str(function.get("name", "unknown")), function.get("arguments")))
    return found


def call_text(call: tuple[str, Any]) -> str:
    """A call as `name(argument=value, …)`, the values as JSON."""
    return f"{call[0]}({arguments_text(call[1])})"


def arguments_text(arguments: Any) -> str:
    """The arguments of a call, see `call_text`; a template may give them as text."""
    if isinstance(arguments, Mapping):
        return ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
    return content_text(arguments)


def content_text(content: Any) -> str:
    """A message's content as text; of content blocks their texts, and the types of the others."""
    if isinstance(content, list):
        parts = [part if isinstance(part, Mapping) else {"text": content_text(part)} for part in content]
        return "".join(str(part["text"]) if "text" in part else f"[{part.get('type', 'block')}]" for part in parts)
    if content is None or isinstance(content, str):
        return content or ""
    return _json(content)


def reasoning_of(message: Message) -> str:
    """The thinking that a response template has taken out of the content, in its tags; empty without any."""
    thinking = message.get("reasoning_content") or message.get("thinking")
    return f"<think>{thinking}</think>" if thinking else ""


def plain_message(message: Message) -> dict[str, Any]:
    """A message as JSON can hold it: what it cannot, such as an image, as text."""
    plain: dict[str, Any] = json.loads(_json(message))
    return plain


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class Played:
    """An episode of an evaluation, after its end."""

    prompt: Sequence[Message] = ()
    """The messages of the prompt, with the environment's observation."""
    messages: Sequence[Message] = ()
    """Those of the model, and the results."""
    sampled: int = 0
    """Tokens that the model sampled."""
    turns: int = 0
    calls: int = 0
    failures: int = 0
    malformed: int = 0
    seconds: float = 0.0
    """In the environment and tools."""
    ended: str = ""
    """See `covey.environments.episodes.Episode`."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """Of the environments that reward, by the name of their class: this episode's own; None of the others."""
    owned: bool = False
    """Whether this episode's environment rewards it."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """See `row_columns`."""
    environment: Any = field(default=None, repr=False, compare=False)
    """The environment, for rewards that read it; until the next batch resets it."""

    @property
    def reward(self) -> float | None:
        """What its environment gave it; None if it failed, or does not reward."""
        return next((value for value in self.rewards.values() if value is not None), None)

    def fields(self) -> dict[str, Any]:
        """The fields of a graded completion that only an episode has."""
        return {
            "messages": [plain_message(message) for message in (*self.prompt, *self.messages)],
            "turns": self.turns,
            "tool_calls": self.calls,
            "tool_failures": self.failures,
            "malformed_calls": self.malformed,
            "environment_seconds": round(self.seconds, 3),
            "episode": self.ended,
            "row": dict(self.row),
        }


def row_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a data row that only its environment and rewards read, as JSON can hold them."""
    return plain_message({name: value for name, value in row.items() if name not in ("prompt", "answer")})


def played_of(completion: object) -> Played | None:
    """The episode that a completion is; None for a plain one."""
    found = getattr(completion, "played", None)
    return found if isinstance(found, Played) else None
