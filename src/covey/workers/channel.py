"""The channels between the trainer, its fork servers and their workers, and how messages are framed.

A message is preceded by its length in eight bytes. The trainer's messages are pickled. A worker's are JSON and are
validated by whoever reads them, because the worker runs user code on model output, and neither may run code in the
trainer. A worker that sends anything else is replaced.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

COMMAND = struct.Struct("!cq")
"""A command to the fork server, with a process id: `F` forks a worker (its socket is passed along), `K` kills one
and its process group, `E` also waits for its end.
"""
REPLY = struct.Struct("!q")
"""What the fork server sends: first, once it has loaded what workers share, how many threads that has started; as the
reply to `F` the new process id, or a negative errno; to `E`, the status as `waitpid` returns it."""
_LENGTH = struct.Struct("!Q")
_READ_SIZE = 1 << 16
MAX_MESSAGE = 1 << 28
"""The longest message that a worker may send, in bytes."""
_MAX_BYTES = 1 << 36
"""The most bytes with one."""


class BadMessageError(Exception):
    """A worker sent something that is not one of its messages."""


class Start(NamedTuple):
    """The first message to the fork server process."""

    work: str  # `module:Class` of what the workers run, see `fork_server_process.py`
    arguments: tuple[Any, ...]  # of the class
    path: list[str]  # the trainer's sys.path, so that the same modules are found
    output: str | None = None  # the file that gets what workers print; None: standard error
    preload: bool = True  # whether the fork server loads what its workers share


def send(channel: socket.socket, message: Any) -> None:
    """Send a message of the trainer; blocks until all of it is sent."""
    send_pickled(channel, pickled(message))


def pickled(message: Any) -> bytes:
    """A message of the trainer for `send_pickled`, which may be sent several times."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def send_pickled(channel: socket.socket, body: bytes) -> None:
    """As `send`."""
    channel.sendall(_LENGTH.pack(len(body)) + body)


def send_json(channel: socket.socket, message: list[Any], limit: int = MAX_MESSAGE) -> None:
    """Send a message of a worker. Raises a `BadMessageError` if it is too long."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > limit:
        raise BadMessageError(f"{len(body) >> 20} MB, more than the {limit >> 20} MB that a worker may send")
    channel.sendall(_LENGTH.pack(len(body)) + body)


def read_json(body: bytes) -> Any:
    """Decode a worker's message. Raises a `BadMessageError` if it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadMessageError("something that is not a message") from None


def receive(channel: socket.socket) -> Any:
    """Wait for a message of the trainer; None once the other side has closed or died."""
    head = _exactly(channel, _LENGTH.size)
    body = _exactly(channel, _LENGTH.unpack(head)[0]) if head else None
    return pickle.loads(body) if body else None


def send_with_bytes(channel: socket.socket, message: list[Any], data: bytes | memoryview = b"") -> None:
    """Send plain data in JSON, and bytes; blocks until all of it is sent."""
    body = json.dumps(message, separators=(",", ":")).encode()
    channel.sendall(_LENGTH.pack(len(body)) + body + _LENGTH.pack(len(data)))
    channel.sendall(data)


def receive_with_bytes(channel: socket.socket) -> tuple[Any, bytearray] | None:
    """Wait for what `send_with_bytes` sends; None once the other side has closed or died. Raises a `BadMessageError` if
    it is no JSON, or too long."""
    parts = []
    for limit in (MAX_MESSAGE, _MAX_BYTES):
        head = _exactly(channel, _LENGTH.size)
        length = 0 if head is None else _LENGTH.unpack(head)[0]
        if length > limit:
            raise BadMessageError("something that is not a message")
        part = None if head is None else _exactly(channel, length)
        if part is None:
            return None
        parts.append(part)
    return read_json(bytes(parts[0])), parts[1]


def _exactly(channel: socket.socket, count: int) -> bytearray | None:
    found = bytearray(count)
    place = memoryview(found)
    while place:
        received = channel.recv_into(place)
        if not received:
            return None
        place = place[received:]
    return found


class Inbox:
    """The trainer's end of a worker's channel, which must not block: yields messages once they are complete.

    Args:
        channel: to read from.
        limit: the longest message that is accepted, in bytes.
    """

    def __init__(self, channel: socket.socket, limit: int = MAX_MESSAGE) -> None:
        self._channel = channel
        self._limit = limit
        self._bytes = bytearray()
        self.closed = False

    def messages(self, *, to_the_end: bool = False) -> Iterator[Any]:
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

    def _complete(self) -> Iterator[Any]:
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > self._limit:
                raise BadMessageError("something that is not a message")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_LENGTH.size : end])
            del self._bytes[:end]
            yield read_json(body)
