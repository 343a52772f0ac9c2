"""A fake file system on which the process dies at a chosen write, or every write fails from there on: earlier writes
stay, later ones do not happen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_CHANGES = ("fsync", "unlink", "rmdir", "replace", "rename", "symlink", "mkdir")


class KilledError(BaseException):
    """The process is dead."""


class Disk:
    """Counts changes of the disk. At the count set by `kill_in` it kills the process, or all changes begin to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.dead = False
        self.fault: int | None = None
        for name in _CHANGES:
            real = getattr(os, name)
            if name == "fsync":
                real = _nothing  # the page cache survives a killed process
            monkeypatch.setattr(os, name, self._counted(real))
        self._open, self._copy = Path.open, shutil.copyfile
        monkeypatch.setattr(Path, "open", lambda path, mode="r", *more, **named: self._file(path, mode, *more, **named))
        monkeypatch.setattr(shutil, "copyfile", self._copied)

    def kill_in(self, changes: int | None, fault: int | None = None) -> None:
        """Start a process that dies after this many changes, or meets this `errno` from then on; None: never."""
        self.left, self.dead, self.fault = changes, False, fault

    def change(self) -> None:
        """Count one change."""
        if self.left is not None and not self.dead:
            self.left -= 1
            self.dead = self.left < 0
        if self.dead and self.fault is not None:
            raise OSError(self.fault, os.strerror(self.fault))
        if self.dead:
            raise KilledError

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.change()
            return real(*args, **kwargs)

        return call

    def _file(self, path: Path, mode: str, *more: Any, **named: Any) -> Any:
        if not set(mode) & set("wa+x"):
            return self._open(path, mode, *more, **named)
        self.change()
        return _Torn(self._open(path, mode, *more, **named), self)

    def _copied(self, source: Any, target: Any, **_: Any) -> Any:
        content = Path(source).read_bytes()
        with Path(target).open("wb") as file:
            file.write(content)
        return target


class _Torn:
    """A file with only half of the current write when the process dies."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> Any:
        try:
            self._disk.change()
        except (KilledError, OSError):
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            raise
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Torn:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _nothing(*_: Any) -> None:
    """Replaces a call that a test does not need."""
