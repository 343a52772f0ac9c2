"""What the trainer and its reward workers say to each other, and how it goes over a socket.

A message is one of the tuples below, pickled, after eight bytes that hold its length. Both ends are Covey's own
processes, so pickle is safe here; what user code returns is turned into plain numbers before it is sent.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from covey.rewards.judging import Called, Sampled

ORDER = struct.Struct("!cq")
"""An order to the home, with a process id: `F` forks a worker (the socket comes along), `K` kills one with its process
group, `E` does so too and waits for its end. `L`, without an id, has the home learn in its idle time."""
ANSWER = struct.Struct("!q")
"""The answer to `F` is the new process id, or a negative errno; to `E`, the status as `waitpid` gives it."""
PATIENCE = 0.1
"""Seconds after which a sample counts as slow: what stands behind it in its worker goes to other workers."""
_LENGTH = struct.Struct("!Q")
_AT_ONCE = 1 << 16


class Start(NamedTuple):
    """The first message to the home process: what every worker needs to find reward functions."""

    settings: Any  # RewardSettings
    finder: str  # `module:function` that turns a name and the settings into a Reward
    path: list[str]  # the trainer's sys.path, so that the same modules are found
    preload: tuple[str, ...]  # rewards to have ready before the first worker is made
    memory: int  # bytes of address space that a worker may use while it grades samples
    output: str | None = None  # the file that gets what rewards print; None: standard error


class Grade(NamedTuple):
    """Grade samples one after the other; each is a ticket and its pickled `(text, row)`."""

    name: str
    samples: list[tuple[int, bytes]]


class Call(NamedTuple):
    """Call a function on a whole batch; `kwargs` are pickled."""

    ticket: int
    name: str
    kwargs: bytes


class Begun(NamedTuple):
    """The function is loaded and the first piece of work begins now: deadlines count from here."""


class SampleDone(NamedTuple):
    """One sample is graded, in so many seconds; `more` says whether the worker goes straight on with its next one."""

    ticket: int
    result: Sampled
    more: bool
    seconds: float


class CallDone(NamedTuple):
    """A call came to an end, good or bad."""

    ticket: int
    result: Called


def send(channel: socket.socket, message: Any) -> None:
    """Send one message whole; blocks until the other side has room for it."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    channel.sendall(_LENGTH.pack(len(body)) + body)


def receive(channel: socket.socket) -> Any:
    """Wait for one message; None when the other side has closed, or died."""
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
    """The receiving end of a channel that must not block: gives the messages that have arrived whole."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._bytes = bytearray()
        self.closed = False

    def messages(self) -> Iterator[Any]:
        """Read what is there, once, and give every whole message; `closed` is set when the other side is gone."""
        try:
            new = self._channel.recv(_AT_ONCE)
        except OSError:  # the worker was killed with bytes of ours unread
            new = b""
        self.closed = not new
        self._bytes += new
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            message = pickle.loads(memoryview(self._bytes)[_LENGTH.size : end].tobytes())
            del self._bytes[:end]
            yield message
