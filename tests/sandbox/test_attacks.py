"""What a program may not do, in every isolation that works here, started by root and by an ordinary user."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

import covey
from covey.sandbox import Isolation, Limits, Program, log_isolation, run

running = importlib.import_module("covey.sandbox.run")
ROOT, NOBODY = 0, 65534
TRY = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
clone = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
def refused(what):
    try:
        return what() == -1
    except OSError:
        return True
"""
ATTACKS = {
    "raw sockets": "lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "packets": "lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "real time": "lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "user namespace": "lambda: libc.unshare(0x10000000)",
    "user namespace of a child": "lambda: libc.syscall(clone, 0x10000011, 0, 0, 0, 0) or os._exit(0)",
    "other namespace": "lambda: libc.unshare(0x20000)",
    "trace": "lambda: libc.ptrace(16, os.getppid(), 0, 0)",
    "seize": "lambda: libc.ptrace(0x4206, os.getppid(), 0, 0)",
    "read memory": "lambda: libc.process_vm_readv(os.getppid(), None, 0, None, 0, 0)",
    "memory": "lambda: open(f'/proc/{os.getppid()}/mem', 'rb')",
    "descriptors": "lambda: os.listdir(f'/proc/{os.getppid()}/fd')",
    "oom score": "lambda: open(f'/proc/{os.getppid()}/oom_score_adj', 'w')",
    "capabilities": "lambda: -1 if not any(int(line.split()[1], 16) for line in open('/proc/self/status')"
    " if line.startswith(('CapEff', 'CapPrm', 'CapInh', 'CapAmb'))) else 0",
    "gaining capabilities": "lambda: -1 if 'NoNewPrivs:\\t1' in open('/proc/self/status').read() else 0",
}
STARTER = """
import importlib, json, sys, time
from covey.sandbox import Isolation, Limits, Program, run
running = importlib.import_module('covey.sandbox.run')
given = json.load(sys.stdin)
way = [*running._candidates(), Isolation('none'), Isolation('none', own_user=True)][given['way']]
exchange = running._exchange
if given['deadline']:
    running._exchange = lambda p, i, until, silence, most: exchange(p, i, time.monotonic() + .5, silence, most)
inputs = [one.encode() for one in given['inputs']]
found = run(Program.of(given['source']), inputs, Limits(**given['limits']), isolation=way)
print(json.dumps([[one.ended, one.stdout.decode(), one.stderr.decode()] for one in found]))
"""


def ways(user: int) -> list[Isolation]:
    with mock.patch("os.geteuid", return_value=user):
        found = [*running._candidates(), Isolation("none")]
    return [*found, Isolation("none", own_user=True)] if user == ROOT else found


CASES = [(user, n) for user in (ROOT, NOBODY) for n in range(len(ways(user)))]
NAMES = [f"{'root' if user == ROOT else 'nobody'}-{ways(user)[n].kind}{n}" for user, n in CASES]


@functools.cache
def python() -> str | None:
    """An interpreter that every user can run."""
    for each in (running.bubblewrap.interpreter(), shutil.which("python3", path="/usr/local/bin:/usr/bin")):
        words = [each, "-c", "import sys; assert sys.version_info >= (3, 11)"]
        with suppress(OSError, subprocess.CalledProcessError, TypeError):
            subprocess.run(words, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", check=True, capture_output=True)
            return str(each)
    return None


@pytest.fixture(scope="module")
def package() -> Iterator[str]:
    """A folder with the package that every user can read."""
    with tempfile.TemporaryDirectory(prefix="covey-attacks-") as folder:
        shutil.copytree(Path(covey.__file__).parent, f"{folder}/covey", ignore=shutil.ignore_patterns("__pycache__"))
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755)
        yield folder


class Starter:
    """A user who runs programs in one isolation, in a process of its own."""

    def __init__(self, user: int, way: int, package: str) -> None:
        self.way, self.isolation = way, ways(user)[way]
        self.interpreter = python()
        self.user: dict[str, Any] = {"user": user, "group": user, "extra_groups": []}
        self.variables = {"PYTHONPATH": package, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, source: str, *inputs: str, deadline: bool = False, **limits: float) -> subprocess.Popen[str]:
        given = {"way": self.way, "source": source, "inputs": inputs or [""], "limits": limits, "deadline": deadline}
        words, pipe = [str(self.interpreter), "-c", STARTER], subprocess.PIPE
        process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd="/", env=self.variables, **self.user
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, source: str, *inputs: str, deadline: bool = False, **limits: float) -> list[list[str]]:
        """For each input: how it ended, standard output, standard error."""
        with self.start(source, *inputs, deadline=deadline, **limits) as process:
            out, err = process.communicate()
        assert process.returncode == 0, err
        return list(json.loads(out))


@pytest.fixture(scope="module", params=CASES, ids=NAMES)
def starter(request: pytest.FixtureRequest, package: str) -> Starter:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"no filter of system calls for {platform.machine()}")
    if os.geteuid() != ROOT:
        pytest.skip("only root can start processes of both users")
    if python() is None:
        pytest.skip("no interpreter of version 3.11 or later that every user can run")
    found = Starter(*request.param, package)
    if found.run("print(42)", seconds=20.0) != [["ok", "42\n", ""]]:
        pytest.skip(f"{found.isolation.kind} does not work here in this way")
    return found


def marked(mark: str) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or ())]


def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true, waiting for it."""
    return any(condition() or time.sleep(0.05) for _ in range(200))


def daemon(mark: str, then: str) -> str:
    """A program that leaves a process in another session, whose parent is gone."""
    return (
        "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n"
        f"        os.setsid()\n        os.execv('/bin/sleep', ['sleep', '{mark}'])\n    os._exit(0)\n{then}"
    )


@pytest.fixture
def mark(starter: Starter) -> str:
    return f"{100_000 + os.getpid() % 1000}.{starter.user['user']}{starter.way}"


@pytest.mark.slow
def test_every_attack_is_refused(starter: Starter) -> None:
    source = TRY + "".join(f"print(refused({what}), {name!r})\n" for name, what in ATTACKS.items())
    ((ended, stdout, stderr),) = starter.run(source)
    assert ended == "ok", stderr
    # Root without a user of its own owns the launcher's folder in /proc: it lists names there, and reads no memory.
    own = starter.isolation.own_user or starter.user["user"] != ROOT
    refused = {line.partition(" ")[2] for line in stdout.splitlines() if line.startswith("True ")}
    assert refused >= set(ATTACKS) - (set() if own else {"descriptors", "oom score"})


@pytest.mark.slow
def test_processes_are_counted(starter: Starter) -> None:
    source = "import os, time\nfor n in range(400):\n    if not os.fork(): time.sleep(9)\nprint('all')"
    ((ended, stdout, _),) = starter.run(source, seconds=4.0, processes=16)
    assert (ended, stdout) == ("failed", "")


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGSTOP", "SIGKILL"])
def test_signals_do_not_reach_the_launcher(starter: Starter, signal: str) -> None:
    source = f"import os, signal\ntry: os.kill(os.getppid(), signal.{signal})\nexcept OSError: pass\nprint(1)"
    assert starter.run(source, "", "", "", seconds=2.0) == [["ok", "1\n", ""]] * 3


@pytest.mark.slow
def test_nothing_survives_its_run(starter: Starter, mark: str) -> None:
    assert starter.run(daemon(mark, "time.sleep(.3)\nprint(1)"), "", "") == [["ok", "1\n", ""]] * 2
    assert not marked(mark)


@pytest.mark.slow
def test_nothing_survives_the_deadline_of_all_runs(starter: Starter, mark: str) -> None:
    found = starter.run(daemon(mark, "time.sleep(99)"), "", "", seconds=99.0, deadline=True)
    assert [ended for ended, *_ in found] == ["timed_out"] * 2
    assert until(lambda: not marked(mark))


@pytest.mark.slow
def test_nothing_survives_the_trainer(starter: Starter, mark: str) -> None:
    with starter.start(daemon(mark, "time.sleep(99)"), seconds=99.0) as process:
        assert until(lambda: bool(marked(mark)))
        process.kill()
    assert until(lambda: not marked(mark))


@pytest.mark.slow
def test_honest_programs_use_input_and_other_programs(starter: Starter) -> None:
    source = "import subprocess, sys\nprint(sys.stdin.read(), subprocess.check_output(['/bin/echo', 'a']))"
    assert starter.run(source, "7") == [["ok", "7 b'a\\n'\n", ""]]


@pytest.mark.parametrize(
    ("known", "other"),
    [("prctl(SECCOMP, ", "prctl(9999, "), ("CALLS[", "{}[")],
    ids=["the kernel refuses it", "unknown machine"],
)
def test_without_a_filter_programs_run_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, known: str, other: str
) -> None:
    filtered = running.strictest.__wrapped__()
    assert known in running._LAUNCHER
    monkeypatch.setattr(running, "_LAUNCHER", running._LAUNCHER.replace(known, other))
    found = running.strictest.__wrapped__()
    assert (found.kind, found.way, found.filtered) == (filtered.kind, filtered.way, False)
    assert run(Program.of("print(1)"), isolation=found)[0].stdout == b"1\n"
    monkeypatch.setattr(running, "strictest", lambda: found)
    monkeypatch.setattr("covey.log_once._logged", set())
    with caplog.at_level(logging.INFO):
        log_isolation()
        log_isolation()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith("system calls are not filtered.")


def test_a_stuck_sandbox_costs_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_LAUNCHER", "import time; time.sleep(60)")
    monkeypatch.setattr(running, "_GRACE", 0.2)
    given: list[float] = []
    exchange = running._exchange
    monkeypatch.setattr(running, "_exchange", lambda *words: given.append(words[3]) or exchange(*words))
    found = run(Program.of(""), [b""] * 100, Limits(seconds=0.1), isolation=Isolation("none"))
    assert [one.ended for one in found] == ["timed_out"] * 100
    assert given == [pytest.approx(0.7)]  # and not 100 times as long: 50 s
