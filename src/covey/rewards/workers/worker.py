"""The processes in which rewards run: `python -m covey.rewards.workers.worker FD`, started by the trainer's
`ForkServer`.

There are two kinds of process. The *fork server* is a fresh interpreter that imports what graders need (mpmath takes a
third of a second) and then only forks and kills *workers*. A worker costs milliseconds and about ten megabytes, so one
that hangs or crashes is replaced at once. The fork server is not forked from the trainer and holds no threads, no torch
and no user code: a worker imports the user's code on first use.

No process is left behind. The fork server ends with its workers when its socket closes or its parent changes. Each
worker leads a process group of its own, which is killed with it; on Linux processes that leave the group are killed too
(`leftover_processes.py`), and the kernel ends workers whose fork server has died. Ctrl-C and SIGTERM are ignored here:
the trainer decides whether a step is finished first.
"""

from __future__ import annotations

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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.rewards.reward import Reward
from covey.rewards.workers import leftover_processes, run_reward
from covey.rewards.workers.messages import (
    COMMAND,
    REPLY,
    SLOW_SECONDS,
    BadMessageError,
    Begun,
    Call,
    CallDone,
    Grade,
    SampleDone,
    Start,
    receive,
    send_answer,
)

FIRST = (r"<answer>\sqrt{12}</answer>", {"prompt": "", "answer": r"2\sqrt{3}"})
"""What the fork server grades first, so that all workers share mpmath and the constants that this computes."""
_PARENT_CHECK = 1.0  # seconds
_REAP_CHECK = 0.05
_LAST_SECONDS = 5.0  # that the fork server has to kill leftover processes before it exits
_DATA = 5  # the field of /proc/self/statm with the private, writable pages: what RLIMIT_DATA counts


def main(arguments: list[str]) -> None:
    """Run the fork server: read the start message, preload, then handle commands until the trainer is gone."""
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that a reward starts would inherit
    os.dup2(2, 1)
    control = socket.socket(fileno=int(arguments[0]))
    start: Start | None = receive(control)
    if start is None:
        return
    if start.output is not None:  # what rewards print would garble the live display
        log = os.open(start.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
    sys.path[:] = start.path
    finder = _finder(start)
    for name in start.preload:
        if (sample := finder(name).sample) is not None:
            run_reward.grade(sample, *FIRST)
    gc.collect()
    gc.freeze()  # keeps the pages that workers share out of garbage collection
    leftover_processes.become_subreaper()
    _ForkServer(control, parent, finder, start.memory).run()


def _finder(start: Start) -> Callable[[str], Reward]:
    module, _, function = start.finder.partition(":")
    find = getattr(importlib.import_module(module), function)
    return lambda name: find(name, start.settings)


class _ForkServer:
    """Forks and kills workers. Single-threaded; runs no user code and grades no model output."""

    def __init__(
        self, control: socket.socket, parent: int, finder: Callable[[str], Reward], memory: int | None
    ) -> None:
        self._control = control
        self._parent = parent
        self._finder = finder
        self._memory = memory
        self._children: set[int] = set()
        self._killed: set[int] = set()  # and not reaped yet
        self._leftovers = False  # whether processes that workers left behind may still run

    def run(self) -> None:
        while os.getppid() == self._parent:
            wait = _REAP_CHECK if self._killed or self._leftovers else _PARENT_CHECK
            ready = select.select([self._control], [], [], wait)[0]
            self._reap()
            if ready and not self._handle_command():
                break
        for pid in list(self._children):
            self._kill(pid)
        for pid in self._killed:
            os.waitpid(pid, 0)
        leftover_processes.kill_leftovers((), _LAST_SECONDS)

    def _handle_command(self) -> bool:
        """Read and handle one command; False when the trainer is gone."""
        try:
            data, sockets, _, _ = socket.recv_fds(self._control, COMMAND.size, 1)
            if len(data) < COMMAND.size:
                return False
            command, pid = COMMAND.unpack(data)
            if command == b"F":
                self._control.sendall(REPLY.pack(self._fork(socket.socket(fileno=sockets[0]))))
            elif pid in self._children:
                self._kill(pid)
                if command == b"E":
                    self._killed.remove(pid)
                    status = os.waitpid(pid, 0)[1]
                    self._kill_leftovers()
                    self._control.sendall(REPLY.pack(status))
        except ConnectionError:
            return False
        return True

    def _kill(self, pid: int) -> None:
        self._children.remove(pid)
        self._killed.add(pid)
        for kill in (os.killpg, os.kill):  # the group, and the process itself in case it has not made one yet
            try:
                kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # ended already; its id is not reused before it is reaped

    def _reap(self) -> None:
        for pid in list(self._killed):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._killed.remove(pid)
                self._leftovers = True
        if self._leftovers:
            self._kill_leftovers()

    def _kill_leftovers(self) -> None:
        self._leftovers = leftover_processes.kill_leftovers(self._children | self._killed)

    def _fork(self, channel: socket.socket) -> int:
        fork_server = os.getpid()
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
            channel.set_inheritable(False)
            leftover_processes.die_with_parent()
            leftover_processes.become_subreaper()
            if os.getppid() == fork_server:
                _Worker(channel, self._finder, self._memory).serve()
                status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)  # skips the cleanup handlers of the fork server


class _Worker:
    """Runs tasks until its socket closes."""

    def __init__(self, channel: socket.socket, finder: Callable[[str], Reward], memory: int | None) -> None:
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
            raise TypeError(f"{work.name} is not a grader")
        send_answer(self._channel, Begun())
        last = work.samples[-1][0]
        for ticket, pickled in work.samples:
            began = time.monotonic()
            text, row = pickle.loads(pickled)
            result = run_reward.grade(sample, text, row)
            seconds = time.monotonic() - began
            more = ticket != last and seconds < SLOW_SECONDS
            send_answer(self._channel, SampleDone(ticket, result, more, seconds))
            if not more:
                return

    def _call(self, work: Call) -> None:
        try:
            function = self._reward(work.name).batch
            kwargs: dict[str, Any] = pickle.loads(work.kwargs)
        except Exception as error:  # user code may raise anything
            failure = f"it, or its columns, cannot be loaded in a worker process: {run_reward.describe(error)}"
            send_answer(self._channel, CallDone(work.ticket, run_reward.CallResult(failure=failure)))
            return
        send_answer(self._channel, Begun())
        result = run_reward.call(function, kwargs, len(kwargs["completions"]))
        try:
            send_answer(self._channel, CallDone(work.ticket, result))
        except BadMessageError as error:
            result = replace(result, logged=[], unlogged=[f"what it logged takes {error}"])
            send_answer(self._channel, CallDone(work.ticket, result))

    def _reward(self, name: str) -> Reward:
        if name not in self._rewards:
            _limit_memory(None)  # it may import large libraries
            self._rewards[name] = self._finder(name)
            _limit_memory(self._memory)
        return self._rewards[name]


def _limit_memory(more: int | None) -> None:
    """Limit the memory of this process, so that a memory bomb raises MemoryError instead of filling the machine.

    Args:
        more: bytes on top of what it has now; None removes the limit.
    """
    if sys.platform != "linux":
        return  # elsewhere the limit has no effect, or counts more than the data
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    size = resource.RLIM_INFINITY
    if more is not None:
        pages = int(Path("/proc/self/statm").read_bytes().split()[_DATA])
        size = pages * resource.getpagesize() + more
    if hard != resource.RLIM_INFINITY:
        size = hard if size == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
