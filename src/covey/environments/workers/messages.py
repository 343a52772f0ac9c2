"""The messages between the trainer and the processes of environments and tools."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from covey.workers.channel import BadMessageError
from covey.workers.plain_data import NotPlainError, plain

Action = Literal["make", "reset", "tool", "reward", "attribute", "attributes"]
"""What a process is asked to do: make its instance or load its tool, or one of the things that this is there for."""
MAX_ANSWER = 4 << 20
"""The longest message that such a process may send, in bytes."""
MAX_TEXT = 64 << 10
"""The longest text that the model is told, in characters; what is longer is cut."""
_NOTE = 200  # characters of the note that says so


class Request(NamedTuple):
    """Asks for one thing."""

    ticket: int
    action: Action
    name: str  # of the method, attribute or standalone tool
    payload: bytes  # pickled


class Done(NamedTuple):
    """It was done; the value is plain data."""

    ticket: int
    value: Any


class Raised(NamedTuple):
    """It raised an exception."""

    ticket: int
    text: str  # of the exception, as the model is told
    description: str  # with its type, and the line that raised it
    lost: bool = False  # the environment cannot go on (`EnvironmentLostError`)


Answer = Done | Raised


def read_answer(action: Action, message: Any) -> Answer:
    """Check a process's message, which was JSON.

    Args:
        action: that it is the answer to.
        message: the answer.

    Raises:
        BadMessageError: it is not one.
    """
    try:
        match plain(message):
            case ["done", int(ticket), value] if _accepts(action, value):
                return Done(ticket, value)
            case ["raised", int(ticket), str(text), str(description), bool(lost)]:
                return Raised(ticket, text[: MAX_TEXT + _NOTE], description[:2000], lost)
    except (NotPlainError, RecursionError):
        pass
    raise BadMessageError("something that is not a message")


def _accepts(action: Action, value: Any) -> bool:
    """Whether a value is what this action returns."""
    match action:
        case "reward":
            return value is None or (type(value) is float and math.isfinite(value))
        case "make" | "attributes":
            return isinstance(value, dict)
        case "attribute":
            return True
    text = value is None or (isinstance(value, str) and len(value) <= MAX_TEXT + _NOTE)
    blocks = isinstance(value, list) and all(isinstance(block, dict) and "type" in block for block in value)
    return text or blocks or (action == "tool" and isinstance(value, bool | int | float | dict))


def cut(text: str) -> str:
    """The text, or its beginning with a note of what is left out."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n[cut: the first {MAX_TEXT:,} of {len(text):,} characters]"
