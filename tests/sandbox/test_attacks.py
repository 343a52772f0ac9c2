"""What a program may not do, in every isolation that works here."""

from __future__ import annotations

import importlib
import os
import platform
import time

import psutil
import pytest

from covey.sandbox import Ended, Isolation, Limits, Program, run

running = importlib.import_module("covey.sandbox.run")
TRY = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
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
    "other namespace": "lambda: libc.unshare(0x20000)",
    "trace": "lambda: libc.ptrace(16, os.getppid(), 0, 0)",
    "memory": "lambda: open(f'/proc/{os.getppid()}/mem', 'rb')",
    "descriptors": "lambda: os.listdir(f'/proc/{os.getppid()}/fd')",
    "oom score": "lambda: open(f'/proc/{os.getppid()}/oom_score_adj', 'w')",
    "capabilities": "lambda: -1 if not any(int(line.split()[1], 16) for line in open('/proc/self/status')"
    " if line.startswith(('CapEff', 'CapPrm', 'CapBnd', 'CapInh', 'CapAmb'))) else 0",
}
ALLOWED = "import subprocess, sys\nprint(sys.stdin.read(), subprocess.check_output(['/bin/echo', 'a']))"


def ways() -> list[Isolation]:
    found = [*running._candidates(), Isolation("none")]
    return [*found, Isolation("none", own_user=True)] if os.geteuid() == 0 else found


@pytest.fixture(scope="module", params=range(len(ways())), ids=[f"{way.kind}{n}" for n, way in enumerate(ways())])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"no filter of system calls for {platform.machine()}")
    way = ways()[request.param]
    if not running._works(way):
        pytest.skip(f"{way.kind} does not work here in this way")
    return way


def attempts() -> str:
    return TRY + "".join(f"print(refused({what}), {name!r})\n" for name, what in ATTACKS.items())


@pytest.mark.slow
def test_every_attack_is_refused(isolation: Isolation) -> None:
    (found,) = run(Program.of(attempts()), isolation=isolation)
    assert found.ended is Ended.OK, found.stderr
    # Root without a user of its own owns the launcher's folder in /proc: it lists names there, and reads no memory.
    open_to_root = {"descriptors", "oom score"} if os.geteuid() == 0 and not isolation.own_user else set()
    refused = {line.partition(" ")[2] for line in found.stdout.decode().splitlines() if line.startswith("True ")}
    assert refused >= set(ATTACKS) - open_to_root


@pytest.mark.slow
def test_processes_are_counted(isolation: Isolation) -> None:
    without_proc = isolation.way is not None and "--proc" not in isolation.way.options
    if without_proc and not isolation.own_user and os.geteuid() == 0:
        pytest.xfail("root in a user namespace without /proc: no limit binds, and nothing can be counted")
    source = "import os, time\nfor n in range(400):\n    if not os.fork(): time.sleep(9)\nprint('all')"
    (found,) = run(Program.of(source), limits=Limits(seconds=4.0, processes=16), isolation=isolation)
    assert found.ended is Ended.FAILED
    assert b"all" not in found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGSTOP", "SIGKILL"])
def test_signals_do_not_reach_the_launcher(isolation: Isolation, signal: str) -> None:
    source = f"import os, signal\ntry: os.kill(os.getppid(), signal.{signal})\nexcept OSError: pass\nprint(1)"
    start = time.monotonic()
    found = run(Program.of(source), [b""] * 3, Limits(seconds=2.0), isolation=isolation)
    assert [one.stdout for one in found] == [b"1\n"] * 3
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_nothing_survives(isolation: Isolation) -> None:
    mark = str(100_000 + os.getpid() % 1000 + len(str(isolation)) / 1000)
    source = (
        "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork():\n"
        f"        os.setsid()\n        os.execv('/bin/sleep', ['sleep', '{mark}'])\n    os._exit(0)\n"
        "time.sleep(.3)\nprint(1)"
    )
    found = run(Program.of(source), [b""] * 2, isolation=isolation)
    assert [one.stdout for one in found] == [b"1\n"] * 2
    assert not [one for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or ())]


def test_honest_programs_use_descriptors_and_programs(isolation: Isolation) -> None:
    (found,) = run(Program.of(ALLOWED), [b"7"], isolation=isolation)
    assert (found.stdout, found.stderr) == (b"7 b'a\\n'\n", b"")


def test_a_stuck_sandbox_costs_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_LAUNCHER", "import time; time.sleep(60)")
    monkeypatch.setattr(running, "_GRACE", 0.2)
    given: list[float] = []
    exchange = running._exchange
    monkeypatch.setattr(running, "_exchange", lambda *words: given.append(words[3]) or exchange(*words))
    found = run(Program.of(""), [b""] * 100, Limits(seconds=0.1), isolation=Isolation("none"))
    assert [one.ended for one in found] == [Ended.TIMED_OUT] * 100
    assert found[0].seconds < 5  # and not 100 times as long: 50 s
    assert given == [pytest.approx(0.7)]
