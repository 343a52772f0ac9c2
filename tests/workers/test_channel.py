"""The framing of messages, without processes."""

from __future__ import annotations

import socket

import pytest

from covey.workers.channel import MAX_MESSAGE, BadMessageError, Inbox


def test_an_excessive_message_length_is_refused_before_the_message_is_read() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall((MAX_MESSAGE + 1).to_bytes(8, "big"))
    with pytest.raises(BadMessageError):
        list(Inbox(ours).messages())
    ours.close()
    theirs.close()
