"""Stands between the launcher and one of its processes, so that nothing is left behind, whoever dies first.

Run as a file of its own (`python -P guard.py ORDERS STOP_SECONDS LOG SHOWN OUTLASTS COMMAND …`): it imports nothing of
Covey and starts at once. ORDERS is the descriptor of a pipe from the launcher. A letter on it is an order: `s` stops
the process (SIGTERM, after STOP_SECONDS SIGKILL), `k` kills it, `d` has it write down its stacks (SIGUSR2). The end of
the pipe means that the launcher is gone, and stops it as well. When the process has ended, everything that it started
and left is ended too, and the guard exits with its exit code (128 and the signal's number when a signal killed it).

What the process prints goes into LOG; with SHOWN=1 also to where the guard's own output goes. A terminal it gets
itself, for what is drawn in place, and only its errors are logged.

With OUTLASTS=1 a SIGTERM from anybody else changes nothing, neither for the guard nor for its process and what that
starts. A scheduler sends it to all processes of a job at once, when only the launcher knows which of them are still
needed. Such a process is stopped by SIGINT in place of SIGTERM. It holds as long as SIGTERM stays blocked; for vLLM's
processes `covey.rollout.vllm_outlast` sees to that.

On Linux the guard adopts what its process leaves behind (a subreaper), also what went into a session of its own; and
when the guard itself is killed, its process gets the signal that would stop it. A guard whose launcher is gone also
ends what other guards of the same launch, killed as well, have left: all of it has COVEY_LAUNCH_MARK in common.

Without a COMMAND it is the warden of a launch: deaf to all signals that can be ignored, it waits for the launcher's end
and then ends what no living guard stands for, until nothing of the launch is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_TICK = 0.05
_DEAF_SECONDS = 0.2
_GIVE_UP_SECONDS = 30.0
_LOOK_AGAIN = 0.5  # looking for a launch's processes means reading the environment of all that there are
MARK = "COVEY_LAUNCH_MARK"
"""The environment variable that all processes of a launch have in common."""
LAST_SECONDS = 2.0
"""What descendants that outlived the process get between SIGTERM and SIGKILL."""


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl; elsewhere there is none, and the order of the ends alone must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of whatever descendants leave behind."""
    prctl(_SET_CHILD_SUBREAPER, 1)


def descendants(of: int, spare: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """All processes below one, without those to be spared and what is below these."""
    found: list[psutil.Process] = []
    try:
        children = psutil.Process(of).children()
    except psutil.NoSuchProcess:
        return found
    for child in children:
        if child.pid not in spare:
            found += [child, *descendants(child.pid, spare)]
    return found


def strays(mark: str) -> list[psutil.Process]:
    """Processes of a launch that no guard looks after any more."""
    guards, others = set(), []
    for one in members(mark):
        with contextlib.suppress(psutil.Error, OSError):
            if __file__ in one.cmdline():
                guards.add(one.pid)
            else:
                others.append(one)
    return [one for one in others if guards.isdisjoint(_above(one))]


def members(mark: str) -> list[psutil.Process]:
    """All processes of a launch below its launcher."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if one.environ().get(MARK) == mark and _is_alive(one):
                found.append(one)
    return found


def outlive_launcher(orders: int, stop_seconds: float) -> int:
    """The warden: wait for the launcher's end, then see to it that nothing of its launch is left."""
    while os.read(orders, 64):
        pass
    mark = os.environ[MARK]
    while True:
        _end(lambda: strays(mark), stop_seconds)
        if all(one.pid == os.getpid() for one in members(mark)):
            return 0
        time.sleep(_LOOK_AGAIN)  # guards are ending what they have, and may yet be killed


def _above(process: psutil.Process) -> set[int]:
    try:
        return {one.pid for one in process.parents()}
    except psutil.Error:
        return set()


def end_all(of: int, patience: float, spare: frozenset[int] = frozenset()) -> int:
    """End every descendant: SIGTERM, and SIGKILL for what is still there. Returns how many there were."""
    return _end(lambda: descendants(of, spare), patience, spare)


def _end(find: Callable[[], list[psutil.Process]], patience: float, spare: frozenset[int] = frozenset()) -> int:
    """End all that is found.

    Also those that are started meanwhile: it looks again until there are none. One that does not hear SIGTERM is
    hardly waited for; one that not even SIGKILL ends (it waits for a device that hangs) is left to the kernel.
    """
    seen: dict[int, float] = {}
    give_up = time.monotonic() + patience + _GIVE_UP_SECONDS
    while left := [one for one in find() if _is_alive(one)]:
        now = time.monotonic()
        if now > give_up:
            break
        for one in left:
            with contextlib.suppress(psutil.Error, OSError):
                if one.pid not in seen:
                    deaf = any(_has_in(one.pid, mask, signal.SIGTERM) for mask in ("SigIgn", "SigBlk"))
                    seen[one.pid] = now + (_DEAF_SECONDS if deaf else patience)
                    one.terminate()
                elif now > seen[one.pid]:
                    one.kill()
        time.sleep(_TICK)
        reap(spare)
    return len(seen)


def reap(spare: frozenset[int] = frozenset()) -> None:
    """Take note of the children that have ended, those to be spared aside: somebody else waits for them."""
    if not hasattr(os, "waitid"):  # macOS, where nothing is adopted either
        return
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in spare:
                return  # it comes first until it is waited for
            os.waitpid(ended.si_pid, 0)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Guard:
    """Runs one command, and obeys the launcher."""

    def __init__(
        self, orders: int, stop_seconds: float, log: int, shown: bool, outlasts: bool, command: list[str]
    ) -> None:
        self._orders = orders
        self._stop_seconds = stop_seconds
        self._stop_signal = signal.SIGINT if outlasts else signal.SIGTERM
        self._log = log
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._streams: dict[int, int] = {}  # what the process prints, and where it is shown
        parent = os.getpid()
        self._child = subprocess.Popen(
            command,
            stdout=(None if os.isatty(1) else subprocess.PIPE) if shown else log,
            stderr=subprocess.PIPE if shown else log,
            preexec_fn=lambda: _prepare(parent, self._stop_signal),
            process_group=0,
        )
        for stream, here in ((self._child.stdout, 1), (self._child.stderr, 2)):
            if stream is not None:
                self._streams[stream.fileno()] = here

    def run(self) -> int:
        """Wait for the command's end; returns the exit code."""
        while (code := self._child.poll()) is None:
            self._pass_on(_TICK)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self.kill()
            if self._killed_at is not None and time.monotonic() > self._killed_at + _GIVE_UP_SECONDS:
                code = -signal.SIGKILL
                break
            reap(frozenset({self._child.pid}))
        end_all(os.getpid(), LAST_SECONDS)
        while self._pass_on(0.0):
            pass
        if self._orders < 0 and (mark := os.environ.get(MARK)):
            _end(lambda: strays(mark), self._stop_seconds)  # one of them may be writing a checkpoint
        return 128 - code if code < 0 else code

    def _pass_on(self, seconds: float) -> bool:
        """Wait so long for orders and output, and see to both; whether there was any output."""
        orders = [self._orders] if self._orders >= 0 else []
        ready, _, _ = select.select([*orders, *self._streams], [], [], seconds)
        for stream in self._streams.keys() & ready:
            text = os.read(stream, 65536)
            if not text:
                del self._streams[stream]
                continue
            for target in (self._log, self._streams[stream]):
                with contextlib.suppress(OSError):  # a full disk, a terminal that is gone: training matters more
                    os.write(target, text)
        if self._orders in ready:
            self._obey(os.read(self._orders, 64))
        return bool(self._streams.keys() & ready)

    def _obey(self, orders: bytes) -> None:
        if not orders:  # the launcher is gone
            self._orders = -1
            self.stop()
        for order in orders.decode():
            {"s": self.stop, "k": self.kill, "d": self.dump}[order]()

    def stop(self) -> None:
        """Ask the process to end: training writes a checkpoint. Asking again changes nothing."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._stop_seconds
            self._child.send_signal(self._stop_signal)

    def kill(self) -> None:
        """End it at once, with all that is below it."""
        self._child.kill()
        self._killed_at = self._killed_at or time.monotonic()
        self._kill_at = time.monotonic() + LAST_SECONDS

    def dump(self) -> None:
        """Have every Python process of a run that listens for it write down where its threads are."""
        for one in descendants(os.getpid()):
            with contextlib.suppress(psutil.Error, OSError):
                if _has_in(one.pid, "SigCgt", signal.SIGUSR2):  # it would kill one that has no handler
                    one.send_signal(signal.SIGUSR2)


def _prepare(parent: int, stop_signal: signal.Signals) -> None:
    """In the new process, before the command runs."""
    prctl(_SET_PARENT_DEATH_SIGNAL, stop_signal)
    if stop_signal != signal.SIGTERM:  # a handler would be replaced by the command's own; what is blocked stays so
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.getppid() != parent:  # the guard died before that took hold
        os._exit(1)
    # By this signal Slurm tells a whole job step that its time is nearly over. Launchers listen; it must kill no other.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _has_in(pid: int, mask: str, number: int) -> bool:
    """Whether a signal is in one of a process's masks (`SigCgt`: caught, `SigIgn`: ignored, `SigBlk`: blocked).

    False where none tells.
    """
    try:
        with Path(f"/proc/{pid}/status").open(encoding="utf-8") as file:
            value = next(line.split()[1] for line in file if line.startswith(f"{mask}:"))
    except FileNotFoundError:
        return False
    return bool(int(value, 16) >> (number - 1) & 1)


def main() -> int:
    orders, stop_seconds, log, shown, outlasts, *command = sys.argv[1:]
    if not command:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        return outlive_launcher(int(orders), float(stop_seconds))
    guard: list[Guard] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # What ends a whole job step (Slurm, a terminal) reaches the guard too: its process comes first.
        signal.signal(number, lambda *_: guard[0].stop() if guard else os._exit(1))
    if outlasts == "1":
        signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which the command would inherit
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    adopt_orphans()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    guard.append(Guard(int(orders), float(stop_seconds), output, shown == "1", outlasts == "1", command))
    return guard[0].run()


if __name__ == "__main__":
    sys.exit(main())
