"""One process of a plan behind its guard, its log, and the warden that ends what launcher and guards cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from covey.launch.guard import MARK, adopt_orphans, end_all

TICK = 0.05
"""Seconds between two looks at a process."""
WARDEN_LIVES = 1.0
"""Seconds that a warden lives at least when it can live at all; another that does not is not started at once."""
LAST_LINES = 15
"""Lines of a log that explain how a process ended."""
GUARD = Path(__file__).with_name("guard.py")

_marked = {MARK: uuid.uuid4().hex, "SPT_NOENV": "1"}
"""The environment by which guards and warden know what belongs to this launch.

The second keeps it legible: setproctitle, by which vLLM names its processes, else writes over it.
"""
_running: set[int] = set()
_adopting = False


def adopt() -> None:
    """From now on, what guards leave behind when they are killed comes to this process, which ends it."""
    global _adopting
    _adopting = True
    adopt_orphans()


def end_strays(seconds: float) -> int:
    """End every process below this one that no living guard stands for; returns how many there were.

    Args:
        seconds: what they get between SIGTERM and SIGKILL.
    """
    return end_all(os.getpid(), seconds, frozenset(_running)) if _adopting else 0


class Warden:
    """A process that stands by to end what is left should this one and guards be killed together.

    A guard sees to its own process and, once the launcher is gone, to what other guards left. What a guard left that
    was killed shortly before its launcher has nobody but the warden. One that is killed itself is replaced at once,
    or after a second where it had just begun.
    """

    def __init__(self, stop_seconds: float) -> None:
        """Prepare it; it runs while this object is entered.

        Args:
            stop_seconds: what those left over get between SIGTERM and SIGKILL.
        """
        self._stop_seconds = stop_seconds
        self._lock, self._over = threading.Lock(), threading.Event()

    def __enter__(self) -> None:
        self._orders, self._alive = os.pipe()  # by whose end it knows that this process is gone
        self._start()
        self._keeper = threading.Thread(target=self._keep, name="warden", daemon=True)
        self._keeper.start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over.set()
            self._process.kill()
        self._keeper.join()
        os.close(self._orders)
        os.close(self._alive)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(GUARD), str(self._orders), str(self._stop_seconds), os.devnull, "0", "0"],
            env={**os.environ, **_marked},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._orders],
            process_group=0,
        )
        _running.add(self._process.pid)

    def _keep(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            self._process.wait()
            _running.discard(self._process.pid)
            if time.monotonic() - began < WARDEN_LIVES:
                self._over.wait(WARDEN_LIVES)
            with self._lock:
                if not self._over.is_set():
                    self._start()


class Managed:
    """A running process, with all that is below it."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        stop_seconds: float,
        *,
        shown: bool = False,
        outlasts: bool = False,
    ) -> None:
        """Start it.

        Args:
            command: what is run.
            environment: what is set beside this process's own environment.
            log: where its output goes, behind what is there.
            stop_seconds: what it gets between being asked to stop and being killed.
            shown: whether its output also goes where this process's goes; a terminal gets it unlogged, but for errors.
            outlasts: whether a SIGTERM from anybody else, such as Slurm's to a whole job, does not end it.
        """
        orders, self._orders = os.pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        words = (str(orders), str(stop_seconds), str(log), str(int(shown)), str(int(outlasts)))
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-P", str(GUARD), *words, *command],
                env={**os.environ, **_marked, "PYTHONUNBUFFERED": "1", **environment},
                stdin=subprocess.DEVNULL,
                pass_fds=[orders],
                process_group=0,  # a terminal's Ctrl-C comes once, from the launcher
            )
        finally:
            os.close(orders)
        self._stop_seconds = stop_seconds
        _running.add(self.pid)

    @property
    def pid(self) -> int:
        """Its guard's number."""
        return self._guard.pid

    def poll(self) -> int | None:
        """Its exit code; 128 and the signal's number when one killed it; None while it runs."""
        code = self._guard.poll()
        return 128 - code if code is not None and code < 0 else code

    def stop(self) -> None:
        """Ask it to end; after its time it is killed."""
        self._order(b"s")

    def kill(self) -> None:
        """End it at once."""
        self._order(b"k")

    def dump(self) -> None:
        """Have it write down its stacks."""
        self._order(b"d")

    def end(self, seconds: float, at_once: Callable[[], bool] = lambda: False) -> None:
        """Ask it to end, wait until it has, and let go of it.

        Args:
            seconds: what it gets before it is killed.
            at_once: whether it is to be killed now; asked again and again.
        """
        self.stop()
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline or at_once():
                self.kill()
            time.sleep(TICK)
        self.close()

    def close(self) -> None:
        """Let go of a process that has ended; if its guard was killed, end what that left behind."""
        if self._orders >= 0:
            os.close(self._orders)
            self._orders = -1
            _running.discard(self.pid)
            end_strays(self._stop_seconds)

    def _order(self, order: bytes) -> None:
        if self.poll() is None and self._orders >= 0:
            try:
                os.write(self._orders, order)
            except BrokenPipeError:  # it ended just now
                return


class Tail:
    """A log as it grows."""

    def __init__(self, path: Path) -> None:
        """Begin at its present end."""
        self.path = path
        self._start = path.stat().st_size if path.exists() else 0

    def last_lines(self, count: int) -> list[str]:
        """The last lines since this object was made, empty ones left out."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._start, end - 400 * count))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]

    def quoted(self, count: int) -> str:
        """The last lines, indented, as they stand below a sentence."""
        return "\n".join(f"  {line}" for line in self.last_lines(count)) or "  (nothing)"
