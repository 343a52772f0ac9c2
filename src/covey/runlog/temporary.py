"""Temporary folders that a killed process does not leave behind for ever."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = ".in-use"


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Context manager: a folder in `TMPDIR`, deleted at the end. Those of the same prefix that killed processes of this
    user have left are deleted now: the lock in them is free."""
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError), (left / _LOCK).open("r+b") as lock:  # "+": over NFS an exclusive lock needs it
            if left.stat().st_uid == os.getuid() and not left.is_symlink():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        new = Path(folder) / f"{_LOCK}.new"
        with new.open("wb") as lock:
            with suppress(OSError):  # a file system without locks, where nothing is deleted later either
                fcntl.flock(lock, fcntl.LOCK_EX)
                new.rename(new.with_name(_LOCK))  # only now: nobody finds it unlocked
            yield Path(folder)
