"""Environments and tools that do what the test tells them, however bad. Imported by worker processes only."""

import asyncio
import ctypes
import decimal
import os
import pickle
import random
import resource
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from covey.environments.contract import EnvironmentLostError


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def sockets() -> list[int]:
    return [fd for fd in range(3, 64) if _is_socket(fd)]


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def to_the_trainer(body: bytes) -> None:
    for fd in sockets():
        os.write(fd, body)


def message(body: bytes) -> bytes:
    return struct.pack("!Q", len(body)) + body


def forge(value: str) -> None:
    """Answer the request under way before its worker does."""
    frame = sys._getframe()
    while "request" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    to_the_trainer(message(f'["done",{frame.f_locals["request"].ticket},{value}]'.encode()))
    time.sleep(1000)


def raises(error: BaseException) -> Any:
    raise error


def spin() -> None:
    while True:
        pass


def stubborn() -> None:
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            continue


def flood() -> str:
    for _ in range(200):
        os.write(1, b"flood " * 50_000)  # 60 MB in all
    return "flooded"


def leave(file: str) -> str:
    """One process in a session of its own, and one that is orphaned as well and holds the channel."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            time.sleep(1000)
        os.write(write, str(pid).encode())
        os._exit(0)
    Path(file).write_text(f"{child.pid} {os.read(read, 20).decode()}")
    return "left"


def nested() -> list[Any]:
    found: list[Any] = []
    for _ in range(500):
        found = [found]
    return found


def recurse() -> Any:
    return recurse()


def endless() -> Iterator[str]:
    while True:
        yield "again "


async def one_by_one() -> AsyncIterator[str]:
    for part in ("a", "b"):
        await asyncio.sleep(0)
        yield part


async def later() -> str:
    await asyncio.sleep(0.001)
    return "later"


def thread() -> str:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return "started"


def no_limits() -> str:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
    return "few files"


ACTS: dict[str, Callable[[str], Any]] = {
    "": lambda rest: None,
    "say": lambda rest: rest,
    "exit": lambda rest: os._exit(3),
    "segfault": lambda rest: ctypes.string_at(0),
    "abort": lambda rest: os.abort(),
    "kill": lambda rest: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda rest: os.kill(os.getpid(), signal.SIGSTOP),
    "kill-parent": lambda rest: [os.kill(os.getppid(), signal.SIGKILL), time.sleep(1000)],
    "interrupt-me": lambda rest: os.kill(os.getpid(), signal.SIGINT),
    "sleep": lambda rest: time.sleep(1000),
    "spin": lambda rest: spin(),
    "stubborn": lambda rest: stubborn(),
    "raise": lambda rest: raises(ValueError(rest)),
    "raise-empty": lambda rest: raises(LookupError()),
    "raise-unprintable": lambda rest: raises(UnprintableError()),
    "raise-long": lambda rest: raises(ValueError("x" * (1 << 20))),
    "system-exit": lambda rest: sys.exit(4),
    "interrupt": lambda rest: raises(KeyboardInterrupt()),
    "base": lambda rest: raises(BaseException("base")),
    "recurse": lambda rest: recurse(),
    "memory": lambda rest: bytearray(10 << 30),
    "close": lambda rest: [os.close(fd) for fd in sockets()],
    "close-and-sleep": lambda rest: [[os.close(fd) for fd in sockets()], time.sleep(1000)],
    "garbage": lambda rest: [to_the_trainer(b"\xff" * 64), time.sleep(1000)],
    "pickle": lambda rest: [to_the_trainer(message(pickle.dumps(Evil(rest)))), time.sleep(1000)],
    "forge": lambda rest: [to_the_trainer(message(b'["done",999999,"forged"]')), time.sleep(1000)],
    "value": forge,
    "lost": lambda rest: raises(EnvironmentLostError(rest)),
    "no-json": lambda rest: [to_the_trainer(message(b"[" * 100_000)), time.sleep(1000)],
    "other-json": lambda rest: [to_the_trainer(message(b'{"done": 1}')), time.sleep(1000)],
    "long": lambda rest: [to_the_trainer(struct.pack("!Q", 1 << 40)), time.sleep(1000)],
    "megabyte": lambda rest: "é" * (1 << 20),
    "megabytes-of-list": lambda rest: [[1.5] * 1000] * 300,
    "megabytes-of-dict": lambda rest: {"text": "y" * (1 << 20)},
    "megabytes-of-blocks": lambda rest: [{"type": "text", "text": "z" * (1 << 23)}],
    "object": lambda rest: object(),
    "unprintable": lambda rest: UnprintableError(),
    "function": lambda rest: print,
    "nested": lambda rest: nested(),
    "surrogate": lambda rest: "\ud800 and more",
    "none": lambda rest: None,
    "number": lambda rest: 7,
    "nan": lambda rest: float("nan"),
    "decimal": lambda rest: decimal.Decimal("1.50"),
    "big": lambda rest: 10**40,
    "bytes": lambda rest: b"bytes",
    "tuple": lambda rest: (1, "a"),
    "list": lambda rest: [1, "a"],
    "set": lambda rest: {1},
    "dict": lambda rest: {"a": (1, 2), 3: None},
    "blocks": lambda rest: [{"type": "text", "text": "a"}],
    "array": lambda rest: __import__("numpy").arange(3),
    "scalar": lambda rest: __import__("numpy").float32(0.5),
    "generator": lambda rest: (part for part in ("a", "b")),
    "one-by-one": lambda rest: one_by_one(),
    "image": lambda rest: [{"type": "image", "image": object()}],
    "endless": lambda rest: endless(),
    "await": lambda rest: later(),
    "flood": lambda rest: flood(),
    "print": lambda rest: print(rest),
    "leave": leave,
    "leave-and-sleep": lambda rest: [leave(rest), time.sleep(1000)],
    "leave-and-exit": lambda rest: [leave(rest), os._exit(3)],
    "thread": lambda rest: thread(),
    "few-files": lambda rest: no_limits(),
    "no-stdout": lambda rest: os.closerange(1, 3) or "closed",
    "group": lambda rest: os.setpgid(0, 0) or "group",
    "random": lambda rest: [random.random(), float(__import__("numpy").random.random())],
    "pid": lambda rest: os.getpid(),
}


def act(what: str) -> Any:
    name, _, rest = what.partition(" ")
    return ACTS[name](rest)


class Obedient:
    """Does what it is told."""

    kind = "obedient"

    def __init__(self, at_start: str = "") -> None:
        self.steps: list[str] = []
        self.last: Any = None
        act(at_start)

    def reset(self, at_reset: str = "say ready", at_reward: str | None = None, **row: Any) -> Any:
        self.steps = []
        self.at_reward = at_reward
        self.row = row
        return act(at_reset)

    def do(self, what: str) -> Any:
        """Do something.

        Args:
            what: The act.
        """
        self.steps.append(what)
        return act(what)

    async def do_later(self, what: str) -> Any:
        """Do something later.

        Args:
            what: The act.
        """
        await asyncio.sleep(0)
        self.steps.append(what)
        return act(what)

    def keep(self, what: str) -> str:
        """Keep what an act returns.

        Args:
            what: The act.
        """
        self.last = act(what)
        return "kept"

    @property
    def count(self) -> int:
        return len(self.steps)

    @property
    def broken(self) -> int:
        raise ValueError("broken")

    def get_reward(self) -> Any:
        return float(len(self.steps)) if self.at_reward is None else act(self.at_reward)


def do(what: str) -> Any:
    """Do something.

    Args:
        what: The act.
    """
    return act(what)


async def do_later(what: str) -> Any:
    """Do something later.

    Args:
        what: The act.
    """
    await asyncio.sleep(0.001)
    return act(what)
