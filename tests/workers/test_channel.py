"""The framing of messages, without processes."""

from __future__ import annotations

import socket
import threading

import pytest

from covey.workers.channel import MAX_MESSAGE, BadMessageError, Inbox, receive_with_bytes, send_with_bytes


def test_an_excessive_message_length_is_refused_before_the_message_is_read() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall((MAX_MESSAGE + 1).to_bytes(8, "big"))
    with pytest.raises(BadMessageError):
        list(Inbox(ours).messages())
    ours.close()
    theirs.close()


def test_plain_data_with_bytes() -> None:
    """More than a socket holds at once; then the end."""
    ours, theirs = socket.socketpair()
    data = bytes(range(256)) * 10_000

    def send() -> None:
        send_with_bytes(theirs, ["ä", 1, None], data)
        send_with_bytes(theirs, [])
        theirs.sendall(b"\0" * 7)
        theirs.close()

    sender = threading.Thread(target=send)
    sender.start()
    assert receive_with_bytes(ours) == (["ä", 1, None], data)
    assert receive_with_bytes(ours) == ([], b"")
    assert receive_with_bytes(ours) is None
    sender.join()
    ours.close()


@pytest.mark.parametrize("sent", [(1 << 60).to_bytes(8, "big"), (2).to_bytes(8, "big") + b"{]" + bytes(8)])
def test_bytes_that_are_no_message(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        with pytest.raises(BadMessageError):
            receive_with_bytes(ours)
