"""The standard streams of every command: a reader that dies, or an encoding that lacks a character, ends nothing."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import IO

_READER_GONE = (errno.EPIPE, errno.EIO)
"""A pipe without a reader (`| head`), and a terminal that was closed."""

logger = logging.getLogger(__name__)


class _Screen(io.FileIO):
    """A file descriptor that leads nowhere once its reader is gone, for child processes too."""

    failed: OSError | None = None
    """Why some of the output is lost, though its reader is not gone: a full disk."""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in _READER_GONE:
                self.failed = error
                return len(data)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if logging.getLogger("covey").handlers:  # a run's log; this stream is in the middle of a write
                logger.warning("The reader of this output is gone: what follows is not shown.", extra={"shown": False})
            return len(data)


def screen(descriptor: int, like: io.TextIOWrapper | None = None, *, closefd: bool = False) -> io.TextIOWrapper:
    """A text stream on a file descriptor whose writes never fail. Characters that its encoding lacks are escaped."""
    raw, whole = _Screen(descriptor, "w", closefd=closefd), like is None or not like.write_through
    errors = "strict" if like is None else like.errors
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if whole else raw,  # type: ignore[type-var]  # as Python does with `-u`
        "utf-8" if like is None else like.encoding,
        "backslashreplace" if errors == "strict" else errors,
        line_buffering=like is not None and like.line_buffering,
        write_through=not whole,
    )


def protect_streams() -> None:
    """Make this process's standard streams safe; those that pytest or a notebook has replaced stay as they are.

    A stream that was closed (`>&-`) leads to the null device: else the next file that is opened would be in its place.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (open as long as the process)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, screen(descriptor))
        elif type(stream) is io.TextIOWrapper and _raw(stream) is None and stream.fileno() == descriptor:
            if stream.errors == "strict" and stream.encoding.lower() != "utf-8":  # processes that are started print too
                os.environ["PYTHONIOENCODING"] = f"{stream.encoding}:backslashreplace"
            setattr(sys, name, screen(descriptor, stream))


def lost_output() -> OSError | None:
    """Why part of standard output was not written (such as a full disk); a reader that is gone is no reason."""
    sys.stdout.flush()
    raw = _raw(sys.stdout)
    return None if raw is None else raw.failed


def _raw(stream: IO[str]) -> _Screen | None:
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    return raw if isinstance(raw, _Screen) else None
