"""The trainer's side of the fork server: starts the process, and has it fork and kill workers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import uuid
from pathlib import Path

from covey.config.secrets import ENGINE_KEY
from covey.workers.channel import COMMAND, REPLY, Start, send
from covey.workers.leftover_processes import MARK, kill_marked

_PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
_EXIT_SECONDS = 2.0  # that the fork server has to exit by itself


class ForkServerGoneError(Exception):
    """The fork server process has died, and its workers with it."""


class NoProcessError(Exception):
    """The system cannot start another process now; the message says why."""


class ForkServer:
    """The process that workers are forked from (see `fork_server_process.py`). Used by one thread.

    Attributes:
        control: becomes readable when the process is ready, or has died.
        ready: whether it has loaded what its workers share, and can fork.

    Raises:
        NoProcessError: the system cannot fork.
    """

    def __init__(self, start: Start) -> None:
        if sys.platform == "win32":
            raise NoProcessError("Windows has no fork")
        self.control, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "covey.workers.fork_server_process", str(theirs.fileno())]
        self._mark = uuid.uuid4().hex
        environment = child_environment() | {MARK: self._mark}
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[theirs.fileno()]
            )
        self.pid = self._process.pid
        self.ready = False
        with contextlib.suppress(OSError):  # it has died, which `wait_until_ready` finds
            send(self.control, start)

    def wait_until_ready(self) -> int:
        """Wait until it has loaded what its workers share; returns how many threads that has started. Raises a
        `ForkServerGoneError` if the fork server has died."""
        threads = self._reply()
        self.ready = True
        return threads

    def fork(self) -> tuple[int, socket.socket]:
        """Fork a worker: returns its process id and the socket of its channel. The fork server must be ready.

        Raises:
            ForkServerGoneError: the fork server has died.
            NoProcessError: the system cannot start another process.
        """
        ours, theirs = _socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [COMMAND.pack(b"F", 0)], [theirs.fileno()])
                pid = self._reply()
            except (OSError, ForkServerGoneError) as error:
                ours.close()
                raise ForkServerGoneError from error
        if pid < 0:
            ours.close()
            raise NoProcessError(os.strerror(-pid))
        return pid, ours

    def kill(self, pid: int) -> None:
        """Kill a worker and all that it started; the fork server reaps it."""
        try:
            self.control.sendall(COMMAND.pack(b"K", pid))
        except OSError as error:
            raise ForkServerGoneError from error

    def end(self, pid: int) -> str:
        """As `kill`, and wait for it; returns how it ended, in words."""
        try:
            self.control.sendall(COMMAND.pack(b"E", pid))
            return how_it_ended(os.waitstatus_to_exitcode(self._reply()))
        except OSError as error:
            raise ForkServerGoneError from error

    def close(self) -> None:
        """End the fork server and its workers, and reap it."""
        self.control.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:  # killed, so it did not end what its workers left behind
            kill_marked(self._mark)

    def forget(self) -> None:
        """In a fork of the trainer: close the socket and leave the processes to the trainer."""
        self.control.close()
        self._process.returncode = 0  # not this process's child

    def _reply(self) -> int:
        try:
            data = self.control.recv(REPLY.size, socket.MSG_WAITALL)
        except OSError as error:
            raise ForkServerGoneError from error
        if len(data) < REPLY.size:
            raise ForkServerGoneError
        reply: int = REPLY.unpack(data)[0]
        return reply


def _socketpair() -> tuple[socket.socket, socket.socket]:
    """A pair of sockets; hundreds of workers may need more open files than the usual soft limit allows. Raises a
    `NoProcessError` if there is no file left to open."""
    import resource  # not on Windows

    try:
        pair = socket.socketpair()
    except OSError as error:
        raise NoProcessError(os.strerror(error.errno or 1)) from error
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if pair[0].fileno() > soft // 2 and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * soft, hard), hard))
    return pair


def child_environment() -> dict[str, str]:
    """The trainer's environment, with Covey importable and numeric libraries limited to one thread."""
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    environment.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # a thread of Arrow's, hence of pandas's
    environment.pop(ENGINE_KEY, None)  # no worker needs it
    environment.setdefault("PYTHONHASHSEED", "0")  # the order of a set of texts is the same in the next run
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if str(_PACKAGE_FOLDER) not in installed:
        paths = [str(_PACKAGE_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def how_it_ended(code: int) -> str:
    """An exit code in words; a negative one is a signal, as in `subprocess`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by the signal {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
