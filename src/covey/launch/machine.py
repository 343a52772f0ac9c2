"""This machine: its GPUs, CPUs and free ports, and files that show how training goes.

Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Container, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from covey.errors import CoveyError
from covey.runlog.directory import RunDirectory

_LIST_SECONDS = 30
_GPU_NAME = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


class LaunchError(CoveyError):
    """A plan that this machine or cluster cannot run, or a process that failed too often."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, or each of several equal ones."""

    gpus: tuple[str, ...] = ()
    """Its GPUs as CUDA_VISIBLE_DEVICES names them: numbers or UUIDs."""
    cpus: int = 1

    @classmethod
    def of(cls, gpus: int, cpus: int = 1) -> Machine:
        """A machine with this many GPUs, numbered from 0."""
        return cls(tuple(str(number) for number in range(gpus)), cpus)


@dataclass(frozen=True, slots=True)
class Place:
    """The position of this node in a run."""

    node: int = 0
    """Its index, from 0."""
    hosts: tuple[str, ...] = ("127.0.0.1",)
    """The addresses of all nodes, by index."""


def this_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """This machine: the GPUs in CUDA_VISIBLE_DEVICES, or all that the driver lists."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    listed = _listed_gpus()
    if visible is None:
        return Machine(listed, cpus)
    # As CUDA reads it: names after an invalid one (-1, or Slurm's NoDevFiles) do not count.
    names = takewhile(_GPU_NAME.fullmatch, (name.strip() for name in visible.split(",")))
    return Machine(tuple(names) if listed else (), cpus)


def counted_gpus(count: int) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def keep_one_gpu(environ: MutableMapping[str, str] = os.environ) -> str | None:
    """Without a launcher, leave this process the first of several visible GPUs; CUDA reads the variable once, at its
    first use.

    Otherwise the model's layers would be spread over all of them, one working at a time.

    Returns:
        What the user is told; None where nothing has changed.
    """
    if "LOCAL_RANK" in environ or "WORLD_SIZE" in environ:
        return None
    gpus = this_machine(environ).gpus
    if len(gpus) < 2:
        return None
    environ["CUDA_VISIBLE_DEVICES"] = gpus[0]
    return (
        f"{len(gpus)} GPUs are visible ({', '.join(gpus)}), and one process trains on one: GPU {gpus[0]}. "
        "`covey launch` with the same arguments uses all of them; CUDA_VISIBLE_DEVICES=N chooses another one."
    )


def _listed_gpus() -> tuple[str, ...]:
    """The indices of the GPUs that NVIDIA's or AMD's driver lists; empty without a driver."""
    if path := shutil.which("nvidia-smi"):
        found = _lines([path, "-L"])
        return tuple(str(number) for number, _ in enumerate(line for line in found if line.startswith("GPU ")))
    if path := shutil.which("rocm-smi"):
        numbers = {match[1] for line in _lines([path, "-i"]) if (match := re.match(r"GPU\[(\d+)\]", line))}
        return tuple(sorted(numbers, key=int))
    return ()


def _lines(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIST_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


_TRIES = 100


def is_free(port: int) -> bool:
    """Whether a server could listen on this port on all addresses of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # A port in TIME_WAIT counts as free, as it does for servers.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port(wanted: int, taken: Container[int] = ()) -> int:
    """The wanted port if it is free, else the next free one above it, else any free one.

    Args:
        wanted: the preferred port.
        taken: ports that are reserved for something else.
    """
    for port in range(wanted, min(wanted + _TRIES, 65536)):
        if port not in taken and is_free(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


FINISH_FILE = "COVEY_FINISH_FILE"
"""Environment variable of training processes: the file for how each ended; `{rank}` stands for its rank."""
STACKS_FILE = "COVEY_STACKS_FILE"
"""The same for the stacks of its threads, dumped on SIGUSR2."""
RESUME_COMMAND = "COVEY_RESUME_COMMAND"
"""Environment variable of a Slurm job and of training processes: the command that resumes the run."""
_LOOK_EVERY = 0.5
FINISHES, STACKS = "finish-*.json", "stacks-*.txt"
"""Globs for the files of all ranks, in the run's log folder."""


class ProgressWatch:
    """When a run last made progress, by the modification times of its files."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self.restart()

    def restart(self) -> None:
        """Restart the clock."""
        self._seen, self._at = self._newest(), time.monotonic()
        self._looked = self._at

    def seconds_since(self) -> float:
        """Seconds since the last progress that was seen."""
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY:  # the file system may be slow
            self._looked = now
            newest = self._newest()
            if newest != self._seen:
                self._seen, self._at = newest, now
        return self._looked - self._at

    def _newest(self) -> float:
        return max(self._times(), default=0.0)

    def _times(self) -> Iterator[float]:
        run = self._run
        for path in (run.root, run.metrics, run.completions, run.evaluation):
            try:
                yield path.stat().st_mtime
            except FileNotFoundError:
                continue


def how_it_ended(logs: Path, code: int) -> tuple[int, bool]:
    """The exit code of training, and whether its end was orderly: not killed, and the reason has been printed.

    A launcher in between (accelerate's, torch's) folds the exit codes of its processes into one and kills the others.
    So each process writes its own, unless it was killed.

    Args:
        logs: folder of these files.
        code: the exit code of the launched command.
    """
    endings: dict[int, bool] = {}
    for path in logs.glob(FINISHES):
        try:
            content = json.loads(path.read_bytes())
            code_of_rank = int(content["code"])
            endings[code_of_rank] = bool(content["orderly"]) and endings.get(code_of_rank, True)
        except (OSError, ValueError, KeyError, TypeError):  # being replaced, or from another program
            continue
    if code in endings:
        return code, endings[code]
    failed = [own for own, orderly in endings.items() if own and orderly]
    return (failed[0], True) if failed and 0 < code < 128 else (code, False)
