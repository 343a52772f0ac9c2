"""Rotating a log while several processes append to it.

Works like logrotate's `copytruncate`: the end is copied to a second file and the log is truncated in place, so that
processes that have it open for appending (the logging module, reward workers) are not affected.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from covey.runlog.files import write_atomically

LOG_BYTES = 10_000_000
"""Size limit of a log before it is rotated; the second file holds at most as much."""
_LOOK_EVERY = 0.2  # seconds: bounds how far a fast writer exceeds the limit

logger = logging.getLogger(__name__)


def older(log: Path) -> Path:
    """The file with the rotated part of a log."""
    return log.with_name(f"{log.name}.1")


@contextlib.contextmanager
def bounded(log: Path, most: int = LOG_BYTES) -> Iterator[None]:
    """Rotate the log in a thread whenever it exceeds `most` bytes.

    All writers must append (O_APPEND): others would leave a gap in the truncated file.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_EVERY):
            rotate(log, most)

    thread = threading.Thread(target=watch, name="covey-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        rotate(log, most)


def rotate(log: Path, most: int) -> None:
    """If the log exceeds `most` bytes, move its last `most` bytes to `older(log)` and empty it."""
    try:
        if log.stat().st_size <= most:
            return
        with log.open("rb") as file:
            file.seek(-most, os.SEEK_END)
            file.readline()  # an incomplete line
            end = file.read(most)
        with contextlib.suppress(OSError):  # a full disk: then the old part is lost, which frees space
            write_atomically(older(log), end)
        os.truncate(log, 0)
    except OSError:  # the log was deleted
        return
    logger.info("The log had reached %d bytes: the earlier part is in %s.", most, older(log).name)
