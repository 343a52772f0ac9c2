"""Parent process of one launched command: cleans up everything it started, whichever process dies first.

Run as a script (`python -P guard.py CONTROL STOP_SECONDS LOG SHOWN IGNORE_SIGTERM COMMAND …`): it imports nothing of
Covey and starts at once. CONTROL is the file descriptor of a pipe from the launcher; each byte is a request: `s` stops
the process (SIGTERM, SIGKILL after STOP_SECONDS), `k` kills it, `d` has it dump its stacks (SIGUSR2). End of file means
that the launcher is gone, and stops it as well. When the process has exited, the guard ends its remaining descendants
and exits with its exit code (128 plus the signal's number when a signal killed it).

The output of the process goes to LOG, with SHOWN=1 also to the guard's own output. A terminal is passed through, so
that progress bars work; then only standard error is logged.

With IGNORE_SIGTERM=1 a SIGTERM from anybody else has no effect on the guard, its process or its descendants. A
scheduler sends it to all processes of a job at once, when only the launcher knows which of them are still needed. Such
a process is stopped by SIGINT instead. This holds as long as SIGTERM stays blocked; for vLLM's processes
`covey.rollout.vllm.sigterm_shield` sees to that.

On Linux the guard is a subreaper: it becomes the parent of orphaned descendants, those in another session included.
When the guard itself is killed, its process gets the stop signal. A guard whose launcher is gone also ends the orphans
of other guards of this launch; they are found by COVEY_LAUNCH_MARK in their environment.

Without a COMMAND it is the launch's reaper: it ignores all signals that can be ignored, waits for the launcher's end,
and then ends processes without a living guard until none of the launch is left. Every second it writes to LOG.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_TICK = 0.05
_IGNORES_SIGTERM_SECONDS = 0.2
_GIVE_UP_SECONDS = 30.0
_EMPTY_SCANS = 2
"""Consecutive scans that must find nothing. A scan is not a snapshot: a process that ends during it may leave a child
that was not listed yet, or was listed as its child."""
_BEAT_SECONDS = 1.0
_SCAN_SECONDS = 0.5  # a scan reads the environment of every process
MARK = "COVEY_LAUNCH_MARK"
"""Environment variable with the launch's id, set for all its processes."""
LAST_SECONDS = 2.0
"""Time between SIGTERM and SIGKILL for descendants that outlived the process."""


def prctl(option: int, value: int) -> None:
    """Call Linux's prctl; does nothing elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def set_subreaper() -> None:
    """Become the parent of orphaned descendants."""
    prctl(_SET_CHILD_SUBREAPER, 1)


def descendants(of: int, exclude: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """All descendants of a process, without the excluded ones and their descendants."""
    found: list[psutil.Process] = []
    try:
        children = psutil.Process(of).children()
    except psutil.NoSuchProcess:
        return found
    for child in children:
        if child.pid not in exclude:
            found += [child, *descendants(child.pid, exclude)]
    return found


def orphans(mark: str) -> list[psutil.Process]:
    """Processes of a launch without a living guard."""
    guards, others = set(), []
    for one in launch_processes(mark):
        with contextlib.suppress(psutil.Error, OSError):
            if __file__ in one.cmdline():
                guards.add(one.pid)
            else:
                others.append(one)
    return [one for one in others if guards.isdisjoint(_ancestors(one))]


def launch_processes(mark: str) -> list[psutil.Process]:
    """All processes of a launch but the launcher."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if one.environ().get(MARK) == mark and _is_alive(one):
                found.append(one)
    return found


def reap_launch(control: int, stop_seconds: float, beat: Path) -> int:
    """The reaper: wait for the launcher's end, then end all processes of its launch; meanwhile, show it in a file."""
    gone = threading.Event()
    beating = threading.Thread(target=_beat, args=(beat, gone), daemon=True)
    beating.start()
    while os.read(control, 64):
        pass
    mark = os.environ[MARK]
    empty = 0
    while empty < _EMPTY_SCANS:
        _end(lambda: orphans(mark), stop_seconds)
        empty = empty + 1 if all(one.pid == os.getpid() for one in launch_processes(mark)) else 0
        time.sleep(_SCAN_SECONDS)  # guards are ending their processes, and may still be killed
    gone.set()
    beating.join()
    with contextlib.suppress(OSError):
        beat.write_text("gone", encoding="utf-8")
    return 0


def _beat(file: Path, gone: threading.Event) -> None:
    """Show the launchers of other nodes that something of this launch is alive; they wait for another text."""
    while not gone.wait(_BEAT_SECONDS):
        with contextlib.suppress(OSError), file.open("r+b") as opened:  # not emptied first: the disk may be full
            opened.write(str(time.time_ns()).encode())


def _ancestors(process: psutil.Process) -> set[int]:
    try:
        return {one.pid for one in process.parents()}
    except psutil.Error:
        return set()


def end_all(of: int, grace: float, exclude: frozenset[int] = frozenset()) -> int:
    """End every descendant: SIGTERM, then SIGKILL after `grace` seconds. Returns how many there were."""
    return _end(lambda: descendants(of, exclude), grace, exclude)


def _end(find: Callable[[], list[psutil.Process]], grace: float, exclude: frozenset[int] = frozenset()) -> int:
    """End all processes that `find` returns, and search again until there are none: others may be started meanwhile.

    One that ignores or blocks SIGTERM is killed almost at once. One that SIGKILL does not end (it hangs in a device
    driver) is left to the kernel.
    """
    seen: dict[int, float] = {}
    give_up = time.monotonic() + grace + _GIVE_UP_SECONDS
    empty = 0
    while empty < _EMPTY_SCANS and (now := time.monotonic()) <= give_up:
        left = [one for one in find() if _is_alive(one)]
        empty = 0 if left else empty + 1
        for one in left:
            with contextlib.suppress(psutil.Error, OSError):
                if one.pid not in seen:
                    ignores = any(_in_mask(one.pid, mask, signal.SIGTERM) for mask in ("SigIgn", "SigBlk"))
                    seen[one.pid] = now + (_IGNORES_SIGTERM_SECONDS if ignores else grace)
                    one.terminate()
                elif now > seen[one.pid]:
                    one.kill()
        time.sleep(_TICK)
        reap(exclude)
    return len(seen)


def reap(exclude: frozenset[int] = frozenset()) -> None:
    """Wait for the children that have ended, except the excluded ones: other code waits for those."""
    if not hasattr(os, "waitid"):  # macOS, which has no subreapers either
        return
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in exclude:
                return  # waitid returns it until it has been waited for
            os.waitpid(ended.si_pid, 0)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Guard:
    """Runs one command, and handles the launcher's requests."""

    def __init__(
        self, control: int, stop_seconds: float, log: int, shown: bool, ignore_sigterm: bool, command: list[str]
    ) -> None:
        self._control = control
        self._stop_seconds = stop_seconds
        self._stop_signal = signal.SIGINT if ignore_sigterm else signal.SIGTERM
        self._log = log
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._streams: dict[int, int] = {}  # the process's output pipes, and the descriptors they are forwarded to
        parent = os.getpid()
        self._child = subprocess.Popen(
            command,
            stdout=(None if os.isatty(1) else subprocess.PIPE) if shown else log,
            stderr=subprocess.PIPE if shown else log,
            preexec_fn=lambda: _prepare(parent, self._stop_signal),
            process_group=0,
        )
        for stream, target in ((self._child.stdout, 1), (self._child.stderr, 2)):
            if stream is not None:
                self._streams[stream.fileno()] = target

    def run(self) -> int:
        """Wait for the command's end; returns the exit code."""
        while (code := self._child.poll()) is None:
            self._poll(_TICK)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self.kill()
            if self._killed_at is not None and time.monotonic() > self._killed_at + _GIVE_UP_SECONDS:
                code = -signal.SIGKILL
                break
            reap(frozenset({self._child.pid}))
        end_all(os.getpid(), LAST_SECONDS)
        while self._poll(0.0):
            pass
        if self._control < 0 and (mark := os.environ.get(MARK)):
            _end(lambda: orphans(mark), self._stop_seconds)  # one of them may be writing a checkpoint
        return 128 - code if code < 0 else code

    def _poll(self, seconds: float) -> bool:
        """Wait at most so long for requests and output, and handle both; returns whether there was any output."""
        control = [self._control] if self._control >= 0 else []
        ready, _, _ = select.select([*control, *self._streams], [], [], seconds)
        for stream in self._streams.keys() & ready:
            text = os.read(stream, 65536)
            if not text:
                del self._streams[stream]
                continue
            for target in (self._log, self._streams[stream]):
                with contextlib.suppress(OSError):  # a full disk or a closed terminal must not end training
                    os.write(target, text)
        if self._control in ready:
            self._handle(os.read(self._control, 64))
        return bool(self._streams.keys() & ready)

    def _handle(self, requests: bytes) -> None:
        if not requests:  # the launcher is gone
            self._control = -1
            self.stop()
        for request in requests.decode():
            {"s": self.stop, "k": self.kill, "d": self.dump}[request]()

    def stop(self) -> None:
        """Send the stop signal: training writes a checkpoint. Calling it again has no effect."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._stop_seconds
            self._child.send_signal(self._stop_signal)

    def kill(self) -> None:
        """Kill it at once, with all its descendants."""
        self._child.kill()
        self._killed_at = self._killed_at or time.monotonic()
        self._kill_at = time.monotonic() + LAST_SECONDS

    def dump(self) -> None:
        """Have every descendant with a handler for SIGUSR2 dump the stacks of its threads."""
        for one in descendants(os.getpid()):
            with contextlib.suppress(psutil.Error, OSError):
                if _in_mask(one.pid, "SigCgt", signal.SIGUSR2):  # without a handler it would kill the process
                    one.send_signal(signal.SIGUSR2)


def _prepare(parent: int, stop_signal: signal.Signals) -> None:
    """In the new process, before the command runs."""
    prctl(_SET_PARENT_DEATH_SIGNAL, stop_signal)
    if stop_signal != signal.SIGTERM:  # exec resets handlers, but not the signal mask
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.getppid() != parent:  # the guard died before prctl took effect
        os._exit(1)
    # Slurm's warning before the time limit goes to the whole job step; only launchers handle it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _in_mask(pid: int, mask: str, number: int) -> bool:
    """Whether a signal is in one of a process's masks (`SigCgt`: caught, `SigIgn`: ignored, `SigBlk`: blocked).

    False where there is no `/proc`.
    """
    try:
        with Path(f"/proc/{pid}/status").open(encoding="utf-8") as file:
            value = next(line.split()[1] for line in file if line.startswith(f"{mask}:"))
    except FileNotFoundError:
        return False
    return bool(int(value, 16) >> (number - 1) & 1)


def main() -> int:
    control, stop_seconds, log, shown, ignore_sigterm, *command = sys.argv[1:]
    if not command:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        return reap_launch(int(control), float(stop_seconds), Path(log))
    guard: list[Guard] = []
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # `nohup`
    for number in (signal.SIGTERM, signal.SIGINT, *(() if ignored else (signal.SIGHUP,))):
        # A signal to the whole job step or terminal reaches the guard too: it must outlive its process.
        signal.signal(number, lambda *_: guard[0].stop() if guard else os._exit(1))
    if ignore_sigterm == "1":
        signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which the command would inherit
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    set_subreaper()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    guard.append(Guard(int(control), float(stop_seconds), output, shown == "1", ignore_sigterm == "1", command))
    return guard[0].run()


if __name__ == "__main__":
    sys.exit(main())
