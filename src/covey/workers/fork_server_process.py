"""The fork server and its workers: `python -m covey.workers.fork_server_process FD`, started by `ForkServer`.

There are two kinds of process. The *fork server* is a fresh interpreter that imports what its workers share and then
only forks and kills *workers*. A worker costs milliseconds and about ten megabytes, so one that hangs or crashes is
replaced at once. The fork server is not forked from the trainer and has a single thread.

No process is left behind. The fork server ends with its workers when its socket closes or its parent changes. Each
worker leads a process group of its own, which is killed with it; on Linux processes that leave the group are killed too
(`leftover_processes.py`), and the kernel ends workers whose fork server has died. Ctrl-C and SIGTERM are ignored here:
the trainer decides whether a step is finished first.
"""

from __future__ import annotations

import gc
import io
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Protocol

from covey.workers import leftover_processes
from covey.workers.channel import COMMAND, REPLY, Start, receive
from covey.workers.signals import STOPS

_PARENT_CHECK = 1.0  # seconds
_REAP_CHECK = 0.05
_LAST_SECONDS = 5.0  # that the fork server has to kill leftover processes before it exits
# What workers print, on its way to the log: a worker that floods it must not fill the disk.
_BURST = 4 << 20  # bytes
_PER_SECOND = 64 << 10  # bytes, after that
_READ_SIZE = 1 << 16


class Work(Protocol):
    """What the workers of a fork server do."""

    def preload(self) -> None:
        """Load what workers share, in the fork server. It runs no model output."""

    def serve(self, channel: socket.socket) -> None:
        """In a worker: handle messages until the channel closes."""


def main(arguments: list[str]) -> None:
    """Run the fork server: read the start message, preload, then handle commands until the trainer is gone."""
    parent = os.getppid()
    _ignore_signals()
    os.dup2(2, 1)
    control = socket.socket(fileno=int(arguments[0]))
    start: Start | None = receive(control)
    if start is None:
        return
    if start.output is not None:  # what workers print would garble the live display
        log = os.open(start.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
    for text in (sys.stdout, sys.stderr):
        if isinstance(text, io.TextIOWrapper):
            text.reconfigure(line_buffering=True, write_through=False)  # whole lines, also of a worker that is killed
    sys.path[:] = start.path
    module, _, name = start.work.partition(":")
    work: Work = getattr(import_module(module), name)(*start.arguments)
    if start.preload:
        work.preload()
        _ignore_signals()  # what it imported may have handlers
    gc.collect()
    gc.freeze()  # keeps the pages that workers share out of garbage collection
    leftover_processes.become_subreaper()
    try:
        control.sendall(REPLY.pack(_threads()))
    except OSError:  # the process that it works for has ended meanwhile, and said why
        return
    _ForkServer(control, parent, work).run()


def _ignore_signals() -> None:
    for number in STOPS:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that a worker starts would inherit


def _threads() -> int:
    """Threads of this process besides the main one; on Linux those of libraries too."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) - 1
    except OSError:
        return threading.active_count() - 1


class _ForkServer:
    """Forks and kills workers. Single-threaded; handles no model output."""

    def __init__(self, control: socket.socket, parent: int, work: Work) -> None:
        self._control = control
        self._parent = parent
        self._work = work
        self._output = OutputPipe()
        self._helpers = leftover_processes.children()  # that what it loaded has started
        self._children: set[int] = set()
        self._killed: set[int] = set()  # and not reaped yet
        self._leftovers = False  # whether processes that workers left behind may still run

    def run(self) -> None:
        sources: list[socket.socket | int] = [self._control, self._output.read_end]
        while os.getppid() == self._parent:
            wait = _REAP_CHECK if self._killed or self._leftovers else _PARENT_CHECK
            ready = select.select(sources, [], [], wait)[0]
            for pid in list(self._killed):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self._killed.remove(pid)
                    self._leftovers = True
            if self._leftovers:
                self._kill_leftovers()
            if self._output.read_end in ready:
                self._output.copy()
            elif not ready:
                self._output.note()
            if self._control in ready and not self._handle_command():
                break
        for pid in list(self._children):
            self._kill(pid)
        for pid in self._killed:
            os.waitpid(pid, 0)
        leftover_processes.kill_leftovers((), _LAST_SECONDS)
        for _ in range(2):  # the pipe holds 64 KiB
            self._output.copy()
        self._output.note()

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

    def _kill_leftovers(self) -> None:
        self._leftovers = leftover_processes.kill_leftovers(self._children | self._killed | self._helpers)

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
            self._output.take_over()
            channel.set_inheritable(False)
            leftover_processes.die_with_parent()
            leftover_processes.become_subreaper()
            if os.getppid() == fork_server:
                self._work.serve(channel)
                status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)  # skips the cleanup handlers of the fork server


class OutputPipe:
    """The pipe that all workers of a fork server print to, copied to its standard error by the fork server.

    Up to four megabytes are copied at once, and then 64 kilobytes per second; the rest is left out, and the log says
    how much.
    """

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._left = float(_BURST)
        self._refilled = time.monotonic()
        self._omitted = 0

    def take_over(self) -> None:
        """In a worker: print to the pipe from now on."""
        os.dup2(self._write_end, 1)
        os.dup2(self._write_end, 2)
        os.close(self._write_end)
        os.close(self.read_end)

    def copy(self) -> bool:
        """Copy what is there, at most 64 KiB; whether there was anything."""
        try:
            data = os.read(self.read_end, _READ_SIZE)
        except BlockingIOError:
            return False
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._refilled) * _PER_SECOND)
        self._refilled = now
        kept = data[: int(self._left)]
        if kept:
            self.note()
            _write(kept)
        self._left -= len(kept)
        self._omitted += len(data) - len(kept)
        return True

    def note(self) -> None:
        """Write how much was left out, if anything, since the last time."""
        if self._omitted:
            _write(f"\n[{self._omitted / 1e6:.1f} MB of output left out]\n".encode())
            self._omitted = 0


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(2, data) :]


if __name__ == "__main__":
    main(sys.argv[1:])
