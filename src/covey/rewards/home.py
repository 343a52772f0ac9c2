"""The trainer's side of the home process: starting it, and having workers made and ended by it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

from covey.errors import RewardError
from covey.rewards.messages import ANSWER, ORDER, Start, send

_PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
_GOODBYE = 2.0  # seconds that the home gets to end by itself


class HomeGoneError(Exception):
    """The home process has died, and its workers with it."""


class Home:
    """The process that workers are forked from (see `worker.py`). Used by one thread."""

    def __init__(self, start: Start) -> None:
        if sys.platform == "win32":
            raise RewardError(
                "Reward workers need a system with fork, which Windows is not: set rewards.workers=0 to run rewards in "
                "the process of the trainer, without deadlines."
            )
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "covey.rewards.worker", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=_environment(), pass_fds=[theirs.fileno()]
            )
        self.pid = self._process.pid
        self._learns = False
        try:
            send(self._control, start)
        except OSError as error:
            raise HomeGoneError from error

    def fork(self) -> tuple[int, socket.socket]:
        """A new worker: its process id, and the socket that it reads its work from.

        Raises:
            HomeGoneError: there is no home any more.
            RewardError: the system gives no further process.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [ORDER.pack(b"F", 0)], [theirs.fileno()])
                pid = self._answer()
            except OSError as error:
                ours.close()
                raise HomeGoneError from error
        if pid < 0:
            ours.close()
            raise RewardError(
                f"No process could be started for the rewards: {os.strerror(-pid)}. Free some memory or processes, or "
                "set rewards.workers to a smaller number."
            )
        return pid, ours

    def kill(self, pid: int) -> None:
        """Kill a worker, with all that it started; the home reaps it."""
        try:
            self._control.sendall(ORDER.pack(b"K", pid))
        except OSError as error:
            raise HomeGoneError from error

    def end(self, pid: int) -> int:
        """As `kill`, and wait for it; gives its status in the form of `os.waitpid`."""
        try:
            self._control.sendall(ORDER.pack(b"E", pid))
            return self._answer()
        except OSError as error:
            raise HomeGoneError from error

    def learn(self) -> None:
        """Have it use its idle time to make later workers faster; once is enough."""
        if self._learns:
            return
        self._learns = True
        try:
            self._control.sendall(ORDER.pack(b"L", 0))
        except OSError as error:
            raise HomeGoneError from error

    def close(self) -> None:
        """Let the home end, and its workers with it, and reap it."""
        self._control.close()
        try:
            self._process.wait(_GOODBYE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a fork of the trainer: drop the socket, and leave the processes to the trainer."""
        self._control.close()
        self._process.returncode = 0  # not this process's child

    def _answer(self) -> int:
        data = self._control.recv(ANSWER.size, socket.MSG_WAITALL)
        if len(data) < ANSWER.size:
            raise HomeGoneError
        answer: int = ANSWER.unpack(data)[0]
        return answer


def _environment() -> dict[str, str]:
    """The trainer's environment; Covey is found where it is now, and numeric libraries leave the cores to the pool."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if str(_PACKAGE_FOLDER) not in installed:
        paths = [str(_PACKAGE_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
