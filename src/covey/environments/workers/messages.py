"""The messages between the trainer and the processes of environments and tools."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from covey.workers.channel import BadMessageError

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
    lost: bool = False  # whether it says that the environment cannot go on


Answer = Done | Raised


def read_answer(message: Any) -> Answer:
    """Check a process's message, which was JSON.

    Raises:
        BadMessageError: it is not one.
    """
    match message:
        case ["done", int(ticket), value]:
            if not isinstance(value, str) or len(value) <= MAX_TEXT + _NOTE:
                return Done(ticket, value)
        case ["raised", int(ticket), str(text), str(description), bool(lost)]:
            return Raised(ticket, text[: MAX_TEXT + _NOTE], description[:2000], lost)
    raise BadMessageError("something that is not a message")


def cut(text: str) -> str:
    """The text, or its beginning with a note of what is left out."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n[cut: the first {MAX_TEXT:,} of {len(text):,} characters]"
