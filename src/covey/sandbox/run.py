"""Running a program in the strictest isolation that this machine offers."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import platform
import random
import re
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.log_once import log_once
from covey.sandbox import bubblewrap
from covey.sandbox.program import Ended, Finished, Limits, Program

logger = logging.getLogger(__name__)

_LAUNCHER = Path(__file__).with_name("launcher.py").read_text(encoding="utf-8")
_TESTING = {
    f"covey/sandbox/{name}.py": Path(__file__).with_name(f"{name}.py").read_bytes()
    for name in ("handles", "peer", "plain", "testing")
}
_RUN_TESTING = "covey/sandbox/testing.py"
_GRACE = 5.0  # seconds for a sandbox to start and end
_GIVE_UP = 2
"""After so many runs in a row that are out of time, the rest counts as such too."""
_USERS = (20_000, 60_000)
"""Range of the users that root gives to programs, one each, so that their processes are counted apart."""
_KERNEL = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
_PER_NAMESPACE = (5, 14)
"""The version of Linux since which processes are counted in a user namespace of their own."""
_WHERE = {
    "bubblewrap": "in namespaces of their own (bubblewrap)",
    "landlock": "under Landlock: without others' files and TCP, but with UDP and a view of other processes",
    "none": "not isolated: with limits only, and with the network and the files that their user can reach",
}


@dataclass(frozen=True, slots=True)
class Isolation:
    """How programs are kept apart here."""

    kind: str
    """A key of `_WHERE`."""
    way: tuple[str, ...] | None = None
    """The options by which bubblewrap works here."""
    own_user: bool = False
    """Whether each program has a user of its own."""
    filtered: bool = True
    """Whether system calls are refused by seccomp (`refuse` in `launcher.py`)."""

    def __str__(self) -> str:
        if os.geteuid() == 0:
            who = "as a user of their own" if self.own_user else "as root without capabilities"
        else:
            who = "as this user"
        return f"{_WHERE[self.kind]}; {who}" + ("" if self.filtered else "; system calls are not filtered")


def run(
    program: Program,
    inputs: Sequence[bytes] = (b"",),
    limits: Limits | None = None,
    *,
    paths: Sequence[str] = (),
    isolation: Isolation | None = None,
    keep: int | None = None,
) -> list[Finished]:
    """Run a program once for each input, one after the other, in one sandbox.

    Two runs in a row that are out of time decide the rest.

    Args:
        program: what runs.
        inputs: what each run reads from standard input.
        limits: of each run.
        paths: folders that it may read, besides the interpreter and system libraries.
        isolation: None takes the strictest of this machine.
        keep: a descriptor that it inherits, under the same number.

    Returns:
        One result per input. Where the sandbox itself is ended, as a program may manage to that hits its limits, the
        remaining ones are `FAILED`, or `TIMED_OUT`.
    """
    limits = limits or Limits()
    isolation = isolation or strictest()
    start = time.monotonic()
    with _started(program, limits, paths, isolation, keep) as process:
        given = b"".join(b"%d\n%b" % (len(one), one) for one in inputs)
        most = len(inputs) * (2 * (limits.output_kb << 10) + 4096)
        # Of all runs together, one waiting for a core is allowed; without a result for so long, the sandbox is stuck.
        until = start + limits.wall_seconds + (len(inputs) - 1) * limits.seconds + _GRACE
        answers, late = _exchange(process, given, until, limits.wall_seconds + _GRACE, most)
        why = b"" if process.stderr is None else process.stderr.read(4096) if process.poll() is not None else b""
    found = list(_parsed(answers, limits))[: len(inputs)]
    rest = Finished(Ended.TIMED_OUT if late else Ended.FAILED, 1, b"", why, time.monotonic() - start)
    return [*found, *[rest] * (len(inputs) - len(found))]


@functools.cache
def strictest() -> Isolation:
    """The strictest isolation of this machine, by trying."""
    each = [*_candidates(), Isolation("none", own_user=os.geteuid() == 0), Isolation("none")]
    tried = (way for one in each for way in (one, replace(one, filtered=False)) if _works(way))
    return next(tried, Isolation("none", filtered=False))


def log_isolation() -> None:
    """Log once how programs are kept apart here; a warning where it is not by namespaces, or without a filter."""
    found = strictest()
    level = logging.INFO if found.kind == "bubblewrap" and found.filtered else logging.WARNING
    log_once(logger, "Untrusted programs run %s.", found, level=level)


def _candidates() -> Iterator[Isolation]:
    if shutil.which("bwrap"):
        yield from (Isolation("bubblewrap", *way) for way in bubblewrap.ways())
    if platform.system() == "Linux":
        yield from (Isolation("landlock", own_user=own) for own in ([True, False] if os.geteuid() == 0 else [False]))


def _works(isolation: Isolation) -> bool:
    (tried,) = run(Program.of("print(6 * 7)"), limits=Limits(seconds=20.0), isolation=isolation)
    return (tried.ended, tried.stdout) == (Ended.OK, b"42\n")


@contextmanager
def _started(
    program: Program, limits: Limits, paths: Sequence[str], isolation: Isolation, keep: int | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Context manager: the sandbox's process, which is gone afterwards."""
    with ExitStack() as stack:
        before: list[str] = []
        descriptors: list[int] = []
        folder = bubblewrap.FOLDER
        user = random.SystemRandom().randrange(*_USERS) if isolation.own_user else None
        if isolation.way is not None:
            for content in program.files.values():
                descriptors.append(os.memfd_create("covey"))
                stack.callback(os.close, descriptors[-1])
                with open(descriptors[-1], "wb", closefd=False) as file:
                    file.write(content)
                os.lseek(descriptors[-1], 0, os.SEEK_SET)
            files = list(zip(descriptors, program.files, strict=True))
            before = bubblewrap.command(isolation.way, limits.memory_mb << 20, files, paths)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="covey-", ignore_cleanup_errors=True))
            for name, content in program.files.items():
                Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, name).write_bytes(content)
            if user is not None:
                os.chown(folder, user, user)
        # Counted by the kernel apart from others', where it can.
        namespace = isolation.way is not None and os.geteuid() != 0 and _KERNEL >= _PER_NAMESPACE
        counted = isolation.own_user or namespace
        bounds = {"AS": limits.memory_mb << 20, "CPU": math.ceil(limits.seconds) + 1, "FSIZE": limits.file_mb << 20}
        bounds |= {"NOFILE": 128, "CORE": 0, "RTPRIO": 0} | ({"NPROC": limits.processes} if counted else {})
        settings: dict[str, Any] = {
            "folder": folder,
            "python": program.python,
            "arguments": list(program.arguments),
            "keep": keep,
            "errors_in_output": program.errors_in_output,
            "command": list(program.command),
            "uid": user,
            "alone": isolation.way is not None,
            "filtered": isolation.filtered,
            "landlock": [*bubblewrap.readable(paths), "/dev/urandom"] if isolation.kind == "landlock" else None,
            "seconds": limits.seconds,
            "wall": limits.wall_seconds,
            "give_up": _GIVE_UP,
            "output": limits.output_kb << 10,
            "limits": bounds,
            "processes": None if counted else limits.processes,
        }
        process = subprocess.Popen(
            [*before, bubblewrap.interpreter(), "-I", "-c", _LAUNCHER, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=bubblewrap.ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
            cwd="/",
            pass_fds=[*descriptors, *([] if keep is None else [keep])],
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                assert process.stdout is not None
                process.stdout.close()  # which tells the launcher to end all that it has started
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _exchange(
    process: subprocess.Popen[bytes], given: bytes, until: float, silence: float, most: int
) -> tuple[bytes, bool]:
    """Write the inputs and read the answers until the process closes them; also, whether time ran out."""
    assert process.stdin is not None
    assert process.stdout is not None
    answers, left, heard = bytearray(), memoryview(given), time.monotonic()
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(answers) <= most:
            wait = min(until, heard + silence) - time.monotonic()
            if wait <= 0:
                return bytes(answers), True
            for key, _ in selector.select(wait):
                if key.fileobj is process.stdout:
                    data, heard = os.read(key.fd, 1 << 20), time.monotonic()
                    if not data:
                        return bytes(answers), False
                    answers += data
                    continue
                try:
                    left = left[os.write(key.fd, left) :] if left else left
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    left = left[:0]
                if not left:
                    selector.unregister(process.stdin)
                    process.stdin.close()
    return bytes(answers), False


def _parsed(answers: bytes, limits: Limits) -> Iterator[Finished]:
    """The results, as far as they are well formed: they may come from the program itself."""
    at, most = 0, limits.output_kb << 10
    while (end := answers.find(b"\n", at)) >= 0:
        try:
            described = json.loads(answers[at:end])
            status, stopped, seconds = described["status"], described["stopped"], float(described["seconds"])
            sizes = described["stdout"], described["stderr"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in (status, *sizes)):
            return
        middle, after = end + 1 + sizes[0], end + 1 + sum(sizes)
        if not (0 <= sizes[0] <= most and 0 <= sizes[1] <= most and after <= len(answers)):
            return
        stdout, stderr = answers[end + 1 : middle], answers[middle:after]
        usual = Ended.OUT_OF_MEMORY if b"MemoryError" in stderr[-4096:] else Ended.FAILED
        stops = {"output": Ended.TOO_MUCH_OUTPUT, "time": Ended.TIMED_OUT}
        how = stops.get(str(stopped)) or (usual if status else Ended.OK)
        yield Finished(how, status, stdout, stderr, seconds)
        at = after


def run_tests(
    code: str,
    tests: str,
    limits: Limits | None = None,
    *,
    paths: Sequence[str] = (),
    isolation: Isolation | None = None,
) -> tuple[list[str], Finished]:
    """Run test code on Python code, each in a sandbox of its own; see `testing.py`.

    Args:
        tests: asserts, statements and test functions.
        limits: of all tests together.
        paths: see `run`.
        isolation: see `run`.

    Returns:
        For each test `right`, `wrong`, `failed` (an exception) or `ended` (so had the tested code); and how that ended.
        No test if the test code is none.
    """
    limits = limits or Limits()
    ours, theirs = socket.socketpair()
    with theirs, ThreadPoolExecutor(1) as pool:
        work = str(2 * math.ceil(limits.seconds) + 1)
        tester = Program({**_TESTING, "tests.py": _utf8(tests)}, _RUN_TESTING, ("tests", str(ours.fileno()), work))
        # The test code waits as long as the other one may wait for a core; that one's end ends it.
        patient = limits.wall_seconds + _GRACE
        waiting = replace(limits, seconds=patient, wall=patient, memory_mb=max(limits.memory_mb, 512))

        def run_tester() -> Finished:
            with ours:  # its end shows the tested code that there is nothing more to do
                return run(tester, limits=waiting, paths=paths, isolation=isolation, keep=ours.fileno())[0]

        future = pool.submit(run_tester)
        tested = Program({**_TESTING, "code.py": _utf8(code)}, _RUN_TESTING, ("code", str(theirs.fileno())))
        (ended,) = run(tested, limits=limits, paths=paths, isolation=isolation, keep=theirs.fileno())
        theirs.close()
        finished = future.result()
    count, *outcomes = finished.stdout.decode().split() or ["0"]
    return outcomes + ["ended"] * (int(count) - len(outcomes)), ended


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
