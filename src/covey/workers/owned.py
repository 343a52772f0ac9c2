"""A supervisor with the life of its owner: started on first use, ended with the program, made anew after a fork."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from covey.errors import CoveyError
from covey.workers.supervisor import Supervisor

Kind = TypeVar("Kind", bound=Supervisor[Any, Any])


class Owned(Generic[Kind]):
    """The supervisor of one owner. Thread-safe.

    Args:
        make: makes and starts one.
        closed: what to raise when it is used after `close`.
    """

    def __init__(self, make: Callable[[], Kind], closed: CoveyError) -> None:
        self._make = make
        self._closed_error = closed
        self._lock = threading.RLock()
        self._closed = False
        self._pid = os.getpid()
        self.current: Kind | None = None
        """The running one, if any."""

    def running(self) -> Kind:
        """The supervisor, which is started if there is none, or if this process is a fork of the one that has it."""
        with self._lock:
            if self._closed:
                raise self._closed_error
            if self._pid != os.getpid() and self.current is not None:
                self.current.forget()
                self.current = None
            if self.current is None:
                self.current = self._make()
                self._pid = os.getpid()
                atexit.register(self.close)
            return self.current

    @property
    def here(self) -> Kind | None:
        """The running one of this process, if any."""
        return self.current if self._pid == os.getpid() else None

    def close(self) -> None:
        """End all processes and reap them."""
        self._closed = True
        self.stop()

    def stop(self) -> None:
        """End all processes and reap them; the next use starts new ones."""
        with self._lock:
            supervisor, self.current = self.current, None
        atexit.unregister(self.close)
        if supervisor is None:
            return
        if self._pid == os.getpid():
            supervisor.close()
        else:
            supervisor.forget()


class Owner:
    """What has a supervisor; as a context manager, it ends the processes."""

    _supervisor: Owned[Any]

    @property
    def pids(self) -> list[int]:
        """The running processes: the fork server first, then those that it forked."""
        supervisor = self._supervisor.current
        return supervisor.pids if supervisor else []

    def close(self) -> None:
        """End the processes and reap them; unfinished work fails."""
        self._supervisor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
