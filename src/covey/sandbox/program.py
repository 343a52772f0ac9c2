"""What runs in a sandbox, what it may use, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

_WAITING = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What each run of a program may use."""

    seconds: float = 5.0
    """Time of a run, at work or asleep. Where the kernel tells, waiting for a core does not count."""
    memory_mb: int = 512
    """MiB: address space of each process, and room for files."""
    processes: int = 16
    """Processes and threads."""
    file_mb: int = 16
    """MiB of one file."""
    output_kb: int = 1024
    """KiB of standard output, and of standard error."""

    wall: float | None = None
    """Seconds after which a run is ended however long it has waited for a core; None for five times its time."""

    @property
    def wall_seconds(self) -> float:
        """After so many seconds a run is ended even if it has waited for a core all the time."""
        return _WAITING * self.seconds if self.wall is None else self.wall


@dataclass(frozen=True, slots=True)
class Program:
    """A program and its files, in a folder of their own."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by name, which may have folders."""
    python: str | None = None
    """The file to run as Python's main program; None where there is a command."""
    arguments: tuple[str, ...] = ()
    """Of the Python program."""
    command: tuple[str, ...] = ()
    """Another program: the absolute path of its executable, and arguments."""
    errors_in_output: bool = False
    """Whether what it writes to standard error goes to its standard output."""

    @classmethod
    def of(cls, source: str) -> Self:
        """A Python program of one file."""
        return cls({"main.py": source.encode("utf-8", "surrogatepass")}, python="main.py")


class Ended(StrEnum):
    """How a run ended."""

    OK = "ok"
    """With exit status 0."""
    FAILED = "failed"
    """With another status, or by a signal."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    """It failed, and said that it could not allocate memory."""
    TOO_MUCH_OUTPUT = "too_much_output"


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a run."""

    ended: Ended
    status: int
    """Exit status; negative: the number of the signal that ended it."""
    stdout: bytes
    stderr: bytes
    seconds: float
