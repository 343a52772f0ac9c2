"""What a machine has, found without importing torch, and where in a Slurm job this process is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from covey.errors import CoveyError

_LIST_SECONDS = 30
_GPU_NAME = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


class LaunchError(CoveyError):
    """A plan that this machine or cluster cannot carry out, or a process that could not be kept running."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, or one of several alike."""

    gpus: tuple[str, ...] = ()
    """The names by which CUDA_VISIBLE_DEVICES knows its GPUs: numbers, or UUIDs."""
    cpus: int = 1

    @classmethod
    def of(cls, gpus: int, cpus: int = 1) -> Machine:
        """A machine with so many GPUs, numbered from 0."""
        return cls(tuple(str(number) for number in range(gpus)), cpus)


@dataclass(frozen=True, slots=True)
class Place:
    """Which of a run's machines this is."""

    node: int = 0
    """Its number, from 0."""
    hosts: tuple[str, ...] = ("127.0.0.1",)
    """The addresses of all of them, in the order of their numbers."""


def this_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """What this machine has: of its GPUs those that CUDA_VISIBLE_DEVICES leaves, or all that the driver lists."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    listed = _listed_gpus()
    if visible is None:
        return Machine(listed, cpus)
    # As CUDA reads it: whatever stands behind a name that is none (-1, or Slurm's NoDevFiles) does not count.
    names = takewhile(_GPU_NAME.fullmatch, (name.strip() for name in visible.split(",")))
    return Machine(tuple(names) if listed else (), cpus)


def this_place(environ: Mapping[str, str] = os.environ) -> Place:
    """Where in a Slurm job step of several nodes this process runs; elsewhere it is the only machine.

    Raises:
        LaunchError: Slurm cannot be asked for the names of the nodes.
    """
    if int(environ.get("SLURM_STEP_NUM_NODES", "1")) < 2:
        return Place()
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIST_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(
            f"This job runs on several nodes ({nodes}), but `scontrol show hostnames` did not name them: {error}. "
            "Make scontrol available on the compute nodes."
        ) from error
    return Place(int(environ["SLURM_NODEID"]), tuple(done.stdout.split()))


def _listed_gpus() -> tuple[str, ...]:
    """The numbers of the GPUs that NVIDIA's or AMD's driver lists; none where there is no such driver."""
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
