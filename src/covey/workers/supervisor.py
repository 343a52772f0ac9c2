"""The thread that owns the fork server and the workers: sends them work, and replaces those that die."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from covey.errors import CoveyError
from covey.workers.channel import BadMessageError, Start, send
from covey.workers.fork_server import ForkServer, ForkServerGoneError, NoProcessError
from covey.workers.worker_process import WorkerProcess

LOAD_SECONDS = 120.0
"""Limit for importing the user's module in a worker, on top of any deadline."""
MOST_TRIES = 3
"""Fork servers, or workers, in a row that may die before they have done anything."""
_PRELOAD_SECONDS = 60.0  # after which each worker imports for itself
_SEND_SECONDS = 60.0

Item = TypeVar("Item")
Worker = TypeVar("Worker", bound=WorkerProcess)


class Supervisor(ABC, Generic[Item, Worker]):
    """Runs work in worker processes. It alone owns the processes; other threads submit items and wait for futures.

    Args:
        start: the start message for the fork server.
        name: of the thread.
    """

    HANDLE: type[Worker]
    """Makes the handle of a new worker."""

    def __init__(self, start: Start, name: str) -> None:
        self._start = start
        self._intake: queue.SimpleQueue[Sequence[Item] | None] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._fork_server: ForkServer | None = None
        self._ready_by = 0.0
        self._fork_servers_lost = 0
        self._workers: list[Worker] = []
        self._closing = self._ended = False
        self._lock = threading.RLock()  # a finalizer may submit while its thread does
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- for any thread

    def submit(self, items: Sequence[Item]) -> None:
        """Queue items; without any it only starts the fork server."""
        with self._lock:
            if not self._ended:
                self._intake.put(items)
                self._wake.send(b"x")
                return
        self._fail(items)

    def close(self) -> None:
        """End all workers and the thread; unfinished items fail."""
        with self._lock:
            if not self._ended:
                self._intake.put(None)
                self._wake.send(b"x")
        self._thread.join()

    def forget(self) -> None:
        """In a fork of the trainer, which has neither the thread nor the workers: close the sockets."""
        for worker in self._workers:
            worker.close()
        if self._fork_server is not None:
            self._fork_server.forget()

    @property
    def pids(self) -> list[int]:
        """The running processes: the fork server first, then the workers."""
        return ([self._fork_server.pid] if self._fork_server else []) + [worker.pid for worker in self._workers]

    # -- what a supervisor does with its items

    @abstractmethod
    def _take(self, item: Item) -> None:
        """A new item has come in."""

    @abstractmethod
    def _handle(self, worker: Worker, message: Any) -> None:
        """A worker has sent a message. Raises `BadMessageError` for one that it should not have sent."""

    @abstractmethod
    def _wait(self) -> float | None:
        """Seconds until `_check` must run; None for no limit."""

    @abstractmethod
    def _check(self) -> None:
        """Look at workers whose time may be up."""

    @abstractmethod
    def _assign(self) -> None:
        """Send work to workers."""

    @abstractmethod
    def _blame(self, worker: Worker, cause: str, at_once: bool) -> None:
        """A worker has died, or will be killed: settle the work that caused it.

        Args:
            worker: the worker.
            cause: what it did, in words that follow "the process".
            at_once: its current work is to blame; else it may be another's fault.
        """

    @abstractmethod
    def _dropped(self, worker: Worker) -> None:
        """A worker is gone: what it was given and is not settled must go elsewhere."""

    @abstractmethod
    def _fail(self, items: Sequence[Item]) -> None:
        """The supervisor has ended before these items were done."""

    @abstractmethod
    def _unfinished(self) -> Sequence[Item]:
        """The items that are not done."""

    @abstractmethod
    def _useless(self) -> CoveyError:
        """What ends the supervisor whose fork servers keep dying."""

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:  # set on the futures, see `_fail`
            self.failure = error
        finally:
            with self._lock:
                self._ended = True
            for worker in list(self._workers):
                self._drop(worker)
            if self._fork_server is not None:
                self._fork_server.close()
            self._selector.close()
            self._wake.close()
            self._woken.close()
            self._fail(self._unfinished())
            while not self._intake.empty():
                self._fail(self._intake.get() or [])

    def _turn(self) -> None:
        waits = [self._wait()]
        server = self._fork_server
        if server is not None and not server.ready:
            waits = [max(0.0, self._ready_by - time.monotonic())]
        try:
            for key, _ in self._selector.select(min((wait for wait in waits if wait is not None), default=None)):
                if key.data is None:
                    self._take_items()
                elif key.data is server:
                    # If loading what its workers share started threads, a fork would not be safe.
                    if server.wait_until_ready() and self._start.preload:
                        server.ready = False
                        self._replace_fork_server()
                    else:
                        self._selector.unregister(server.control)
                elif key.data in self._workers:
                    self._read(key.data, has_ended=key.fileobj == key.data.pidfd)
            self._check()
            if not self._closing:
                self._assign()
            if server is not None and not server.ready and time.monotonic() >= self._ready_by:
                self._replace_fork_server()
        except ForkServerGoneError:
            self._replace_fork_server()

    def _take_items(self) -> None:
        self._woken.recv(4096)
        while not self._intake.empty():
            items = self._intake.get()
            if items is None:
                self._closing = True
                return
            for item in items:
                self._take(item)
            if not items:
                with contextlib.suppress(NoProcessError):  # found again with the first item
                    self._started()

    def _started(self) -> bool:
        """Start the fork server; whether it is ready to fork."""
        if self._fork_server is None:
            self._fork_server = ForkServer(self._start)
            self._ready_by = time.monotonic() + _PRELOAD_SECONDS
            self._selector.register(self._fork_server.control, selectors.EVENT_READ, self._fork_server)
        return self._fork_server.ready

    def _read(self, worker: Worker, *, has_ended: bool) -> None:
        if has_ended:  # a process that it started may hold the channel open, so that a blocking read would never end
            worker.channel.setblocking(False)
        try:
            for message in worker.inbox.messages(to_the_end=has_ended):
                self._handle(worker, message)
        except BadMessageError as error:  # user code wrote to the channel, or corrupted the worker's memory
            self._blame(worker, f"sent the trainer {error}", at_once=True)
            self._end(worker)
            return
        if worker.inbox.closed:
            assert self._fork_server is not None
            self._blame(worker, self._fork_server.end(worker.pid), at_once=self._has_begun(worker))
            self._drop(worker)

    def _has_begun(self, worker: Worker) -> bool:
        """Whether the worker runs what it was given."""
        return True

    def _end(self, worker: Worker) -> None:
        """Kill a worker; what it had not begun goes to others."""
        assert self._fork_server is not None
        worker.stop()
        self._fork_server.kill(worker.pid)
        self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        self._workers.remove(worker)
        for source in worker.sources:
            self._selector.unregister(source)
        worker.close()
        self._dropped(worker)

    def _fork(self) -> Worker | None:
        """Fork a worker; None while the fork server is not ready. Raises a `NoProcessError` if the system cannot start
        another process (`fork_server.py`)."""
        if not self._started():
            return None
        assert self._fork_server is not None
        pid, channel = self._fork_server.fork()
        channel.settimeout(_SEND_SECONDS)
        worker = self.HANDLE(pid, channel)
        self._workers.append(worker)
        for source in worker.sources:
            self._selector.register(source, selectors.EVENT_READ, worker)
        return worker

    def _tell(self, worker: Worker, message: Any) -> None:
        """Send a worker a message. If it has died, the next read shows it."""
        with contextlib.suppress(OSError):
            send(worker.channel, message)

    def _replace_fork_server(self) -> None:
        """The fork server was killed (out of memory, say), and all workers with it, or cannot load what they share."""
        server, self._fork_server = self._fork_server, None
        if server is not None:
            if not server.ready:
                self._selector.unregister(server.control)
            server.close()
        if server is not None and not server.ready and self._start.preload:
            self._start = self._start._replace(preload=False)  # each worker loads for itself, and shows what is wrong
        else:
            self._fork_servers_lost += 1
        for worker in list(self._workers):
            self._blame(worker, "was killed from outside", at_once=False)
            self._drop(worker)
        if self._fork_servers_lost >= MOST_TRIES:
            raise self._useless()
        self._wake.send(b"x")  # so that the next turn assigns what is left
