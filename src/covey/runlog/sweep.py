"""The folder of a sweep: which jobs it has, how each is doing, and where their run directories and outputs lie.

`sweep.json` is the table of the jobs; `jobs/` holds, for each, its config, what it printed and how it stands. The run
directories lie beside `jobs/`, one per job. The job's own process writes how it stands, wherever that runs; everybody
else only reads it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from covey.errors import RunDirectoryError
from covey.runlog.directory import RunDirectory
from covey.runlog.files import guard_disk, write_atomically

WAITING, RUNNING, FINISHED, STOPPED, FAILED = "waiting", "running", "finished", "stopped", "failed"
"""What can be said of a job. `stopped` has a checkpoint to go on from; `failed` ended with an error."""


@dataclass(frozen=True, slots=True)
class SweepJob:
    """One job of a sweep."""

    number: int
    name: str
    """Its run name: the number and what is special about it."""
    swept: Mapping[str, str]
    """The swept keys and this job's values, as they were written."""
    max_steps: int | None = None
    """Optimiser steps of the whole run, where the config says so."""


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job stands."""

    state: str = WAITING
    seconds: float = 0.0
    """Time that its processes have taken, all invocations together, without the one under way."""
    since: float | None = None
    """When the process under way was started, in seconds since 1970."""
    exit_code: int | None = None
    """How the newest process ended; negative for a signal."""

    def elapsed(self, now: float) -> float:
        """Seconds of work until now."""
        return self.seconds + (max(0.0, now - self.since) if self.since is not None else 0.0)

    def started(self) -> JobState:
        """The same job once its process has been started."""
        return replace(self, state=RUNNING, since=time.time(), exit_code=None)

    def ended(self, state: str, exit_code: int | None) -> JobState:
        """The same job once its process has ended."""
        return JobState(state, self.elapsed(time.time()), None, exit_code)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The table of the jobs."""

    keys: tuple[str, ...]
    """What is swept, in the order of the command line."""
    jobs: tuple[SweepJob, ...]
    directory: str
    """Where the jobs are started: the files that a config names are looked for from there."""


@dataclass(frozen=True, slots=True)
class SweepDirectory:
    """One sweep's folder, `output_dir/sweep name`. Making the object touches nothing on the disk."""

    root: Path

    @property
    def table(self) -> Path:
        return self.root / "sweep.json"

    @property
    def markdown(self) -> Path:
        return self.root / "sweep.md"

    @property
    def csv(self) -> Path:
        return self.root / "sweep.csv"

    @property
    def launcher(self) -> Path:
        """Where Hydra and its launchers keep what they need."""
        return self.root / ".hydra"

    def run(self, job: SweepJob) -> RunDirectory:
        return RunDirectory(self.root / job.name)

    def config(self, job: SweepJob) -> Path:
        """The job's whole config, which `covey train --config` runs."""
        return self.root / "jobs" / f"{job.name}.yaml"

    def output(self, job: SweepJob) -> Path:
        """What the job printed."""
        return self.root / "jobs" / f"{job.name}.log"

    def read(self) -> Sweep:
        """The table of the jobs.

        Raises:
            RunDirectoryError: there is none, or it is not readable.
        """
        try:
            content = json.loads(self.table.read_bytes())
            jobs = tuple(SweepJob(**job) for job in content["jobs"])
            return Sweep(tuple(content["keys"]), jobs, content["directory"])
        except FileNotFoundError:
            raise RunDirectoryError(f"{self.root} holds no sweep: there is no {self.table.name}.") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(
                f"{self.table} is not the table of a sweep that this version of Covey reads ({error}). Choose another "
                "run_name."
            ) from None

    def write(self, sweep: Sweep) -> None:
        """Write the table of the jobs."""
        with guard_disk("the sweep", self.root):
            write_atomically(self.table, json.dumps(asdict(sweep), indent=2, ensure_ascii=False) + "\n")

    def state(self, job: SweepJob) -> JobState:
        """How the job stands; waiting while nothing was written."""
        try:
            content: dict[str, Any] = json.loads(self._state(job).read_bytes())
        except FileNotFoundError:
            return JobState()
        return JobState(**content)

    def write_state(self, job: SweepJob, state: JobState) -> None:
        """Write down how the job stands."""
        with guard_disk("the sweep", self.root):
            write_atomically(self._state(job), json.dumps(asdict(state)) + "\n")

    def _state(self, job: SweepJob) -> Path:
        return self.root / "jobs" / f"{job.name}.json"
