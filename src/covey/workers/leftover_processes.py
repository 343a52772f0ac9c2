"""Killing processes that a worker started and left behind, even in a session of their own. Linux only.

A worker is the subreaper of its children, and the fork server that of its workers. So a child of the fork server that
is not a worker was left by a worker that has ended. If the fork server itself is killed, the trainer finds the
leftovers by an environment variable that they all inherit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path

_PARENT_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_TICK = 0.01
MARK = "COVEY_WORKERS_MARK"
"""The environment variable of a fork server and all its descendants."""
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def become_subreaper() -> None:
    """Become the parent of orphaned descendants."""
    if _libc is not None:
        _libc.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent dies."""
    if _libc is not None:
        _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def kill_leftovers(known: Collection[int], seconds: float = 0.0) -> bool:
    """Kill and reap every child of this process that is not known; return whether any is left.

    Args:
        known: children that stay.
        seconds: how long to repeat this: children of a killed process become children of this one.
    """
    end = time.monotonic() + seconds
    while left := [pid for pid in children() if pid not in known]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError, PermissionError):
                continue
        if time.monotonic() >= end:
            return True
        time.sleep(_TICK)
    return False


def kill_marked(mark: str) -> None:
    """Kill every process that has this mark in its environment."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                process.kill()


def children() -> set[int]:
    """The children of this process."""
    pid = os.getpid()
    try:
        return {int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()}
    except FileNotFoundError:  # a kernel without it, or another system
        import psutil

        return {child.pid for child in psutil.Process().children()} if _libc is not None else set()
