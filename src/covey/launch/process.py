"""A launched process under its guard, its log, and the reaper that cleans up when launcher and guards are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from covey.launch.guard import MARK, end_all, set_subreaper

TICK = 0.05
"""Seconds between two polls of a process."""
REAPER_MIN_SECONDS = 1.0
"""A reaper that ended sooner than this is replaced only after a pause of as long."""
LAST_LINES = 15
"""Lines at the end of a log that are shown when a process has failed."""
GUARD = Path(__file__).with_name("guard.py")

_MARK_ENVIRONMENT = {MARK: uuid.uuid4().hex, "SPT_NOENV": "1"}
"""Variables by which guards and reaper find the processes of this launch.

The second keeps setproctitle, which vLLM names its processes with, from overwriting the environment.
"""
_running: set[int] = set()
_is_subreaper = False


def become_subreaper() -> None:
    """Become the parent of processes whose guard is killed, so that this process can end them."""
    global _is_subreaper
    _is_subreaper = True
    set_subreaper()


def end_orphans(seconds: float) -> int:
    """End every descendant that has no living guard; returns how many there were.

    Args:
        seconds: time between SIGTERM and SIGKILL.
    """
    return end_all(os.getpid(), seconds, frozenset(_running)) if _is_subreaper else 0


class Reaper:
    """A process that ends what is left when the launcher and guards are killed together.

    A guard ends its own process and, once the launcher is gone, the orphans of other guards. The reaper covers the case
    of a guard that is killed just before its launcher. A reaper that is killed is replaced.
    """

    def __init__(self, stop_seconds: float, beat: Path | None = None) -> None:
        """Prepare it; it runs within a `with` block.

        Args:
            stop_seconds: time between SIGTERM and SIGKILL.
            beat: a file to which it writes every second while anything of the launch is alive.
        """
        self._stop_seconds, self._beat = stop_seconds, beat or os.devnull
        self._lock, self._stopping = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        self._control, self._alive = os.pipe()  # end of file shows it that this process is gone
        self._start()
        self._keeper = threading.Thread(target=self._keep, name="reaper", daemon=True)
        self._keeper.start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopping.set()
            self._process.kill()
        self._keeper.join()
        os.close(self._control)
        os.close(self._alive)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(GUARD), str(self._control), str(self._stop_seconds), str(self._beat), "0", "0"],
            env={**os.environ, **_MARK_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._control],
            process_group=0,
        )
        _running.add(self._process.pid)

    def _keep(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._process.wait()
            _running.discard(self._process.pid)
            if time.monotonic() - began < REAPER_MIN_SECONDS:
                self._stopping.wait(REAPER_MIN_SECONDS)
            with self._lock:
                if not self._stopping.is_set():
                    self._start()


class ManagedProcess:
    """A running process and its descendants."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        stop_seconds: float,
        *,
        shown: bool = False,
        ignore_sigterm: bool = False,
    ) -> None:
        """Start it.

        Args:
            command: the command line.
            environment: variables added to this process's environment.
            log: file that its output is appended to.
            stop_seconds: time between the stop signal and SIGKILL.
            shown: whether its output also goes to this process's output; on a terminal only its errors are logged.
            ignore_sigterm: whether it survives a SIGTERM from anybody else, such as Slurm's to a whole job.
        """
        control, self._control = os.pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        words = (str(control), str(stop_seconds), str(log), str(int(shown)), str(int(ignore_sigterm)))
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-P", str(GUARD), *words, *command],
                env={**os.environ, **_MARK_ENVIRONMENT, "PYTHONUNBUFFERED": "1", **environment},
                stdin=subprocess.DEVNULL,
                pass_fds=[control],
                process_group=0,  # a terminal's Ctrl-C comes once, from the launcher
            )
        finally:
            os.close(control)
        self._stop_seconds = stop_seconds
        _running.add(self.pid)

    @property
    def pid(self) -> int:
        """Its guard's process id."""
        return self._guard.pid

    def poll(self) -> int | None:
        """Its exit code; 128 plus the signal's number when one killed it; None while it runs."""
        code = self._guard.poll()
        return 128 - code if code is not None and code < 0 else code

    def stop(self) -> None:
        """Send the stop signal; after `stop_seconds` it is killed."""
        self._request(b"s")

    def kill(self) -> None:
        """Kill it."""
        self._request(b"k")

    def dump(self) -> None:
        """Have it dump its stacks."""
        self._request(b"d")

    def end(self, seconds: float, at_once: Callable[[], bool] = lambda: False) -> None:
        """Stop it, wait until it has ended, and release it.

        Args:
            seconds: time until it is killed.
            at_once: whether to kill it now; polled.
        """
        self.stop()
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline or at_once():
                self.kill()
            time.sleep(TICK)
        self.close()

    def close(self) -> None:
        """Release a process that has ended; if its guard was killed, end what is left of it."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1
            _running.discard(self.pid)
            end_orphans(self._stop_seconds)

    def _request(self, request: bytes) -> None:
        if self.poll() is None and self._control >= 0:
            try:
                os.write(self._control, request)
            except BrokenPipeError:  # it has just ended
                return


class Tail:
    """The end of a growing log."""

    def __init__(self, path: Path) -> None:
        """Start at its current end."""
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0

    def last_lines(self, count: int) -> list[str]:
        """The last non-empty lines since this object was made."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._start, end - 400 * count))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]

    def quoted(self, count: int) -> str:
        """The last lines, indented for an error message."""
        return "\n".join(f"  {line}" for line in self.last_lines(count)) or "  (nothing)"
