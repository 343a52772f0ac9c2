"""The messages between the trainer and its reward workers, and their encoding.

A message is one of the tuples below, preceded by its length in eight bytes. The trainer's messages are pickled. A
worker's are JSON and are validated, because the worker runs user code on model output, and neither may run code in the
trainer. A worker that sends anything else is replaced.
"""

from __future__ import annotations

import json
import math
import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from covey.answers import Outcome
from covey.rewards.workers.run_reward import LOGS, CallResult, LogEntry, SampleResult

COMMAND = struct.Struct("!cq")
"""A command to the fork server, with a process id: `F` forks a worker (its socket is passed along), `K` kills one
and its process group, `E` also waits for its end.
"""
REPLY = struct.Struct("!q")
"""The reply to `F` is the new process id, or a negative errno; to `E`, the status as `waitpid` returns it."""
SLOW_SECONDS = 0.1
"""Seconds after which a sample counts as slow: the tasks queued behind it in its worker go to other workers."""
_LENGTH = struct.Struct("!Q")
_READ_SIZE = 1 << 16
MAX_MESSAGE = 1 << 28
"""The longest message that a worker may send, in bytes."""


class BadMessageError(Exception):
    """A worker sent something that is not one of its messages."""


class Start(NamedTuple):
    """The first message to the fork server process: what every worker needs to find reward functions."""

    settings: Any  # RewardSettings
    finder: str  # `module:function` that turns a name and the settings into a Reward
    path: list[str]  # the trainer's sys.path, so that the same modules are found
    preload: tuple[str, ...]  # rewards to have ready before the first worker is made
    memory: int | None  # bytes that a worker may take on top of what it has once a reward is loaded
    output: str | None = None  # the file that gets what rewards print; None: standard error


class Grade(NamedTuple):
    """Grade samples in order; each is a ticket and a pickled `(text, row)`."""

    name: str
    samples: list[tuple[int, bytes]]


class Call(NamedTuple):
    """Call a function on a whole batch; `kwargs` are pickled."""

    ticket: int
    name: str
    kwargs: bytes


class Begun(NamedTuple):
    """The function is loaded and the first task begins: deadlines count from here."""


class SampleDone(NamedTuple):
    """One sample is graded; `more`: whether the worker continues with the next one of its chunk."""

    ticket: int
    result: SampleResult
    more: bool
    seconds: float


class CallDone(NamedTuple):
    """A call has returned or failed."""

    ticket: int
    result: CallResult


Answer = Begun | SampleDone | CallDone


def send(channel: socket.socket, message: Any) -> None:
    """Send a message of the trainer; blocks until all of it is sent."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    channel.sendall(_LENGTH.pack(len(body)) + body)


def send_answer(channel: socket.socket, message: Answer) -> None:
    """Send a message of a worker.

    Raises:
        BadMessageError: it is too long.
    """
    body = json.dumps(_listed(message), separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE:
        raise BadMessageError(f"{len(body) >> 20} MB, more than the {MAX_MESSAGE >> 20} MB that a worker may send")
    channel.sendall(_LENGTH.pack(len(body)) + body)


def _listed(message: Answer) -> list[Any]:
    match message:
        case SampleDone(ticket, (value, outcome, cause, refused), more, seconds):
            return ["sample", ticket, value, outcome and outcome.value, cause, refused, more, seconds]
        case CallDone(ticket, called):
            return ["call", ticket, called.values, called.bad, called.failure, called.logged, called.unlogged]
    return ["begun"]


def read_answer(body: bytes) -> Answer:
    """Decode a worker's message.

    Raises:
        BadMessageError: it is not one.
    """
    try:
        match json.loads(body):
            case ["begun"]:
                return Begun()
            case ["sample", int(ticket), value, outcome, str(cause), bool(refused), bool(more), float(seconds)]:
                found = None if outcome is None else Outcome(outcome)
                return SampleDone(ticket, SampleResult(_reward(value), found, cause, refused), more, seconds)
            case ["call", int(ticket), list(values), list(bad), str(failure), list(logged), list(unlogged)]:
                called = CallResult(
                    [_reward(value) for value in values],
                    [(int(row), str(why)) for row, why in bad],
                    failure,
                    [_entry(*entry) for entry in logged],
                    [str(text) for text in unlogged],
                )
                return CallDone(ticket, called)
    except (ValueError, TypeError, RecursionError):
        pass
    raise BadMessageError("something that is not a message")


def _reward(value: Any) -> float | None:
    if value is None or (type(value) is float and math.isfinite(value)):
        return value
    raise ValueError("not a reward")


def _entry(function: Any, name: Any, value: Any) -> LogEntry:
    kind = {"log_extra": list, "log_metric": float}
    if function not in LOGS or not isinstance(name, str) or not isinstance(value, kind[function]):
        raise ValueError("not a log entry")
    return LogEntry(function, name, value)


def receive(channel: socket.socket) -> Any:
    """Wait for a message of the trainer; None once the other side has closed or died."""
    head = _exactly(channel, _LENGTH.size)
    body = _exactly(channel, _LENGTH.unpack(head)[0]) if head else None
    return pickle.loads(body) if body else None


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts = []
    while count:
        part = channel.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Inbox:
    """The trainer's end of a worker's channel, which must not block: yields messages once they are complete."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._bytes = bytearray()
        self.closed = False

    def messages(self, *, to_the_end: bool = False) -> Iterator[Answer]:
        """Read once and yield every complete message; `closed` is set when the other side is gone.

        Args:
            to_the_end: the worker has ended, so read all that is left; the channel must be non-blocking.

        Raises:
            BadMessageError: the worker sent something else.
        """
        while not self.closed:
            try:
                new = self._channel.recv(_READ_SIZE)
            except OSError:  # the worker was killed with bytes of ours unread, or there is nothing more
                new = b""
            self.closed = not new
            self._bytes += new
            yield from self._complete()
            if not to_the_end:
                return

    def _complete(self) -> Iterator[Answer]:
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > MAX_MESSAGE:
                raise BadMessageError("something that is not a message")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield read_answer(body)
