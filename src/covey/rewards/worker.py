"""The processes in which rewards run: `python -m covey.rewards.worker FD`, started by the trainer's `Home`.

Two kinds of process. The *home* is a fresh interpreter that has imported what graders need (math-verify takes half a
second) and then only makes and ends *workers*, which are forks of it: a worker costs some milliseconds and some ten
megabytes, so one that hangs or crashes is replaced at once. The home is no fork of the trainer and holds no threads, no
torch, and nothing of the user's: a worker imports the user's code on first use. Once a worker was lost, the home spends
the time between two batches on learning more for those that will replace others (`warm_up.py`).

Nobody is left behind. The home ends when its socket closes or its parent changes, and takes its workers along. Each
worker leads a process group of its own, so that what a reward starts goes with it, and the kernel (on Linux) ends a
worker whose home has died. Ctrl-C and SIGTERM are for the trainer: it decides whether a step is finished first.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from covey.rewards import judging, warm_up
from covey.rewards.messages import (
    ANSWER,
    ORDER,
    PATIENCE,
    Begun,
    Call,
    CallDone,
    Grade,
    SampleDone,
    Start,
    receive,
    send,
)
from covey.rewards.reward import Reward

_PARENT_CHECK = 1.0  # seconds
_REAP_CHECK = 0.05


def main(arguments: list[str]) -> None:
    """Be the home: read the start message, get ready, then follow orders until the trainer is gone."""
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler, which programs that a reward starts do not inherit
    os.dup2(2, 1)
    control = socket.socket(fileno=int(arguments[0]))
    start: Start | None = receive(control)
    if start is None:
        return
    if start.output is not None:  # what rewards print would tear the display
        log = os.open(start.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
    sys.path[:] = start.path
    finder = _finder(start)
    graders = [sample for name in start.preload if (sample := finder(name).sample) is not None]
    for lesson in warm_up.lessons(graders, warm_up.FIRST):
        judging.grade(*lesson)
    _share()
    _Home(control, parent, finder, start.memory, graders).follow_orders()


def _share() -> None:
    """What is there now is shared by all workers, and never looked through again."""
    gc.collect()
    gc.freeze()


def _finder(start: Start) -> Callable[[str], Reward]:
    module, _, function = start.finder.partition(":")
    find = getattr(importlib.import_module(module), function)
    return lambda name: find(name, start.settings)


class _Home:
    """Makes and ends workers. Single-threaded; nothing that the user or a model wrote is ever graded here."""

    def __init__(
        self,
        control: socket.socket,
        parent: int,
        finder: Callable[[str], Reward],
        memory: int,
        graders: list[warm_up.Grader],
    ) -> None:
        self._control = control
        self._parent = parent
        self._finder = finder
        self._memory = memory
        self._graders = graders
        self._lessons: deque[warm_up.Lesson] = deque()
        self._children: set[int] = set()
        self._killed: set[int] = set()  # and not reaped yet
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def follow_orders(self) -> None:
        while os.getppid() == self._parent:
            wait = 0.0 if self._lessons else _REAP_CHECK if self._killed else _PARENT_CHECK
            ready = select.select([self._control], [], [], wait)[0]
            self._reap()
            if ready and not self._follow_one():
                break
            if self._lessons and not ready:  # an order waits for one lesson at most
                self._learn_one()
        for pid in list(self._children):
            self._kill(pid)
        for pid in self._killed:
            os.waitpid(pid, 0)

    def _follow_one(self) -> bool:
        """Read and follow one order; False when the trainer is gone."""
        try:
            data, sockets, _, _ = socket.recv_fds(self._control, ORDER.size, 1)
            if len(data) < ORDER.size:
                return False
            order, pid = ORDER.unpack(data)
            if order == b"F":
                self._control.sendall(ANSWER.pack(self._fork(socket.socket(fileno=sockets[0]))))
            elif order == b"L":
                self._lessons.extend(warm_up.lessons(self._graders, warm_up.MORE))
            elif pid in self._children:
                self._kill(pid)
                if order == b"E":
                    self._killed.remove(pid)
                    self._control.sendall(ANSWER.pack(os.waitpid(pid, 0)[1]))
        except ConnectionError:
            return False
        return True

    def _learn_one(self) -> None:
        judging.grade(*self._lessons.popleft())
        if not self._lessons:
            _share()

    def _kill(self, pid: int) -> None:
        self._children.remove(pid)
        self._killed.add(pid)
        for kill in (os.killpg, os.kill):  # the group, and the process itself if it had no time to make one
            try:
                kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # gone already; it is not reaped yet, so its number is nobody else's

    def _reap(self) -> None:
        for pid in list(self._killed):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._killed.remove(pid)

    def _fork(self, channel: socket.socket) -> int:
        home = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or no memory
            channel.close()
            return -(error.errno or 1)
        if pid:
            channel.close()
            self._children.add(pid)
            return pid
        status = 1
        try:
            os.setpgid(0, 0)
            self._control.close()
            if self._libc is not None:
                self._libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() == home:
                _Worker(channel, self._finder, self._memory).serve()
                status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)  # nothing of the home's is cleaned up twice


class _Worker:
    """Does one piece of work after the other until its socket closes."""

    def __init__(self, channel: socket.socket, finder: Callable[[str], Reward], memory: int) -> None:
        self._channel = channel
        self._finder = finder
        self._memory = memory
        self._rewards: dict[str, Reward] = {}

    def serve(self) -> None:
        while (work := receive(self._channel)) is not None:
            if isinstance(work, Grade):
                self._grade(work)
            else:
                self._call(work)

    def _grade(self, work: Grade) -> None:
        sample = self._reward(work.name).sample
        if sample is None:
            raise TypeError(f"{work.name} is no grader")
        _limit_memory(self._memory)
        send(self._channel, Begun())
        last = work.samples[-1][0]
        for ticket, pickled in work.samples:
            began = time.monotonic()
            text, row = pickle.loads(pickled)
            result = judging.grade(sample, text, row)
            seconds = time.monotonic() - began
            more = ticket != last and seconds < PATIENCE
            send(self._channel, SampleDone(ticket, result, more, seconds))
            if not more:
                return

    def _call(self, work: Call) -> None:
        _limit_memory(resource.RLIM_INFINITY)  # a function may need whole libraries; it is given by the user
        try:
            function = self._reward(work.name).batch
            kwargs: dict[str, Any] = pickle.loads(work.kwargs)
        except Exception as error:  # the user's own modules, which may raise anything
            failure = f"it cannot be loaded, or given its columns, in a worker process: {judging.describe(error)}"
            send(self._channel, CallDone(work.ticket, judging.Called(failure=failure)))
            return
        send(self._channel, Begun())
        result = judging.call(function, kwargs, len(kwargs["completions"]))
        try:
            send(self._channel, CallDone(work.ticket, result))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            failure = f"what it logged with log_extra cannot be sent to the trainer: {judging.describe(error)}"
            send(self._channel, CallDone(work.ticket, judging.Called(failure=failure)))

    def _reward(self, name: str) -> Reward:
        if name not in self._rewards:
            self._rewards[name] = self._finder(name)
        return self._rewards[name]


def _limit_memory(size: int) -> None:
    """Bound the address space, so that a memory bomb becomes a MemoryError here and not a full machine."""
    if sys.platform != "linux":
        return  # elsewhere the limit does nothing, or counts what is not the program's
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        size = hard if size == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
