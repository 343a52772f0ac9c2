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


def screen(descriptor: int, like: IO[str] | None, *, closefd: bool = False) -> io.TextIOWrapper:
    """A text stream on a file descriptor whose writes never fail. Characters that its encoding lacks are escaped."""
    kept = like if isinstance(like, io.TextIOWrapper) else None
    encoding, errors = (kept.encoding, kept.errors) if kept else ("utf-8", None)
    raw = _Screen(descriptor, "w", closefd=closefd)
    unbuffered = kept is not None and kept.write_through
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),  # type: ignore[type-var]  # as Python does with `-u`
        encoding,
        "backslashreplace" if errors in (None, "strict") else errors,
        line_buffering=kept is not None and kept.line_buffering,
        write_through=unbuffered,
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
        if stream is not None and (type(stream) is not io.TextIOWrapper or _raw(stream) is not None):
            continue
        if stream is not None:
            if stream.fileno() != descriptor:
                continue
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
