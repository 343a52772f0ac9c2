"""The rollout process as the trainer sees it: started, written to, read from, and how it ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from covey.config.vllm import SAMPLING_GPU
from covey.errors import EngineError, one_line
from covey.rollout.process.messages import Interrupt, Start
from covey.workers.channel import pickled, receive_with_bytes, send, send_pickled
from covey.workers.fork_server import child_environment, how_it_ended

_SHOWN = 1000
"""Characters of the end of its output that are shown when it has died."""
_NOISE = ("Extension modules:", "Loading weights:")
"""Beginnings of lines that say nothing about why it has died."""
_LAUNCH_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_", "TORCHELASTIC_"),
    *("ACCELERATE_", "FSDP_", "OMPI_", "PMI_"),
)
"""Beginnings of the names of variables of a distributed launch, in which this process has no part."""


class EndedError(Exception):
    """The process has ended.

    Attributes:
        how: in words, which follow its name.
        output: the end of what it printed, as a sentence; may be empty.
    """

    def __init__(self, how: str, output: str) -> None:
        super().__init__(how)
        self.how, self.output = how, output


class StartedProcess:
    """One process and its channel.

    Attributes:
        pid: its id.
        ready: whether it has said so; set by the reader.
    """

    def __init__(self, output: Path, threads: int) -> None:
        """Start it; `begin` follows."""
        self._channel, theirs = socket.socketpair()
        self._output = output
        self.ready = False
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        environment = child_environment() | dict.fromkeys(names, str(threads))
        environment = {name: value for name, value in environment.items() if not name.startswith(_LAUNCH_VARIABLES)}
        if (gpu := environment.pop(SAMPLING_GPU, None)) is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        command = [sys.executable, "-P", "-m", "covey.rollout.process.child", str(theirs.fileno()), str(os.getpid())]
        with theirs, output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # the terminal's signals are the trainer's
            )
        self.pid = self._process.pid

    def begin(self, start: bytes) -> None:
        """Send the pickled `Start`; blocks until the process has imported what reads it."""
        with contextlib.suppress(OSError):  # it has died, which `receive` finds
            send(self._channel, sys.path)
            send_pickled(self._channel, start)

    def send(self, message: Any) -> None:
        """Send a message. Raises an `EndedError` if it has died."""
        try:
            send(self._channel, message)
        except OSError:
            raise self._ended() from None

    def abandon(self, interrupt: Interrupt) -> None:
        """Interrupt a call for which nobody waits."""
        with contextlib.suppress(OSError):
            send(self._channel, interrupt)

    def readable(self, seconds: float) -> bool:
        """Whether there is something to read, or the process has died; waits for that at most so long."""
        try:
            return bool(select.select([self._channel], [], [], seconds)[0])
        except (OSError, ValueError):  # closed meanwhile
            return True

    def receive(self) -> tuple[Any, bytearray]:
        """Wait for a message.

        Raises:
            EndedError: it has died.
            BadMessageError: it has sent something else.
        """
        try:
            found = receive_with_bytes(self._channel)
        except OSError:
            found = None
        if found is None:
            raise self._ended()
        return found

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):  # wakes a thread that reads
            self._channel.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def _ended(self) -> EndedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # it has closed its end of the channel, so it is about to end
        how = how_it_ended(self._process.returncode) if self._process.returncode is not None else "went silent"
        self.kill()
        text = ""
        with contextlib.suppress(OSError):  # the folder was removed
            lines = self._output.read_text("utf-8", "replace").splitlines()
            text = " ".join(" ".join(line for line in lines if not line.startswith(_NOISE)).split())[-_SHOWN:]
        return EndedError(how, f"The end of its output: {text}" if text else "It printed nothing.")


class Starter:
    """Starts processes, from a thread that lives as long as they may: the kernel ends them with that thread."""

    def __init__(self, start: Start, output: Path, threads: int) -> None:
        """
        Raises:
            EngineError: the model or the tokenizer cannot be pickled.
        """
        try:
            self._start = pickled(start)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise EngineError(
                f"The model or its tokenizer cannot be sent to the rollout process: {one_line(error)}. Their classes "
                "must be importable, so not be defined in a function or in the script that is run."
            ) from error
        self._arguments = (output, threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout-starter")
        self._lock = threading.Lock()
        self._newest: StartedProcess | None = None
        self._pid = os.getpid()

    def start(self) -> StartedProcess:
        """Start a process. Raises an `EndedError` if this is closed, or the system cannot start one."""
        with self._lock:
            try:
                self._newest = self._thread.submit(StartedProcess, *self._arguments).result()
                self._thread.submit(self._newest.begin, self._start)
            except RuntimeError:  # after close, or when the interpreter ends
                raise EndedError("was closed", "") from None
            except OSError as error:  # too many processes, or no memory
                raise EndedError(f"could not be started ({error.strerror})", "") from None
            return self._newest

    def close(self) -> bool:
        """End the newest process; no other is started. In a fork of the trainer nothing is done, and it is false."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            self.stop()
            self._thread.shutdown()
        return True

    def stop(self) -> None:
        """End the newest process."""
        if self._newest is not None:
            self._newest.kill()
