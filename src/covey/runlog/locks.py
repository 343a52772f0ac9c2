"""Locks of folders, which the system releases when a process ends, and temporary folders that are then deleted."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from covey.errors import RunDirectoryError

_PATIENCE = 0.1  # seconds: `is_locked` in another process holds the lock for a moment
_LOCK = ".in-use"

logger = logging.getLogger(__name__)


class DeletedError(RunDirectoryError):
    """The folder was deleted or moved while it was locked."""

    def __init__(self, folder: Path, what: str = "the run") -> None:
        super().__init__(
            f"{folder} was deleted or moved while {what} was being written there, so it was stopped. Move it back to "
            "resume, or start again."
        )


def take_lock(path: Path, instead: str) -> int:
    """Lock a file, which is made with its folder; returns the descriptor that holds the lock.

    Args:
        instead: advice for when another process holds it.

    Raises:
        RunDirectoryError: another process holds it.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # the previous holder has just removed the folder
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_open_at(descriptor, path):
                return descriptor
            os.close(descriptor)  # the previous holder has just deleted it: try a new file
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() >= until:
                raise in_use(path.parent, instead) from None
            time.sleep(_PATIENCE / 10)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                os.close(descriptor)
                raise
            logger.warning("The file system of %s has no locks: make sure that no two runs write there.", path.parent)
            return descriptor


def in_use(folder: Path, instead: str) -> RunDirectoryError:
    """The error of a folder that is locked."""
    return RunDirectoryError(f"{folder} is being written by another process. {instead}")


def is_open_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:  # it is gone, or its server
        return False


@contextmanager
def temporary_folder(prefix: str, within: Path | None = None) -> Iterator[Path]:
    """Context manager: a folder within another or `TMPDIR`, deleted at the end. Those of the same prefix that killed
    processes of this user have left are deleted now: the lock in them is free."""
    for left in (within or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        with suppress(OSError), (left / _LOCK).open("r+b") as lock:  # "+": over NFS an exclusive lock needs it
            if left.stat().st_uid == os.getuid() and not left.is_symlink():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=within, ignore_cleanup_errors=True) as folder:
        new = Path(folder) / f"{_LOCK}.new"
        with new.open("wb") as lock:
            with suppress(OSError):  # a file system without locks, where nothing is deleted later either
                fcntl.flock(lock, fcntl.LOCK_EX)
                new.rename(new.with_name(_LOCK))  # only now: nobody finds it unlocked
            yield Path(folder)
