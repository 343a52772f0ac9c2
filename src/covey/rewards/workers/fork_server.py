"""The trainer's side of the fork server: starts the process, and has it fork and kill workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import uuid
from pathlib import Path

from covey.config.secrets import ENGINE_KEY
from covey.errors import RewardError
from covey.rewards.workers.leftover_processes import MARK, kill_marked
from covey.rewards.workers.messages import COMMAND, REPLY, Start, send

_PACKAGE_FOLDER = Path(__file__).resolve().parents[3]
_EXIT_SECONDS = 2.0  # that the fork server has to exit by itself


class ForkServerGoneError(Exception):
    """The fork server process has died, and its workers with it."""


class ForkServer:
    """The process that workers are forked from (see `worker.py`). Used by one thread."""

    def __init__(self, start: Start) -> None:
        if sys.platform == "win32":
            raise RewardError(
                "Reward workers need os.fork, which Windows does not have: set rewards.workers=0 to run rewards in "
                "the process of the trainer, without deadlines."
            )
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "covey.rewards.workers.worker", str(theirs.fileno())]
        self._mark = uuid.uuid4().hex
        environment = _environment() | {MARK: self._mark}
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[theirs.fileno()]
            )
        self.pid = self._process.pid
        try:
            send(self._control, start)
        except OSError as error:
            raise ForkServerGoneError from error

    def fork(self) -> tuple[int, socket.socket]:
        """Fork a worker: returns its process id and the socket of its channel.

        Raises:
            ForkServerGoneError: the fork server has died.
            RewardError: the system cannot start another process.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [COMMAND.pack(b"F", 0)], [theirs.fileno()])
                pid = self._reply()
            except OSError as error:
                ours.close()
                raise ForkServerGoneError from error
        if pid < 0:
            ours.close()
            raise RewardError(
                f"No process could be started for the rewards: {os.strerror(-pid)}. Free some memory or processes, or "
                "set rewards.workers to a smaller number."
            )
        return pid, ours

    def kill(self, pid: int) -> None:
        """Kill a worker and all that it started; the fork server reaps it."""
        try:
            self._control.sendall(COMMAND.pack(b"K", pid))
        except OSError as error:
            raise ForkServerGoneError from error

    def end(self, pid: int) -> str:
        """As `kill`, and wait for it; returns how it ended, in words."""
        try:
            self._control.sendall(COMMAND.pack(b"E", pid))
            return _ended(self._reply())
        except OSError as error:
            raise ForkServerGoneError from error

    def close(self) -> None:
        """End the fork server and its workers, and reap it."""
        self._control.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:  # killed, so it did not end what its workers left behind
            kill_marked(self._mark)

    def forget(self) -> None:
        """In a fork of the trainer: close the socket and leave the processes to the trainer."""
        self._control.close()
        self._process.returncode = 0  # not this process's child

    def _reply(self) -> int:
        data = self._control.recv(REPLY.size, socket.MSG_WAITALL)
        if len(data) < REPLY.size:
            raise ForkServerGoneError
        reply: int = REPLY.unpack(data)[0]
        return reply


def _environment() -> dict[str, str]:
    """The trainer's environment, with Covey importable and numeric libraries limited to one thread."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    environment.pop(ENGINE_KEY, None)  # no reward needs it
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if str(_PACKAGE_FOLDER) not in installed:
        paths = [str(_PACKAGE_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _ended(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by the signal {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
