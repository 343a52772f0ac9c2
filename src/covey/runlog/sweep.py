"""The folder of a sweep: its jobs, their states, run directories and outputs.

`sweep.json` is the table of jobs; `jobs/` holds each job's config, output and state. The run directories are next to
`jobs/`, one per job. Only the job's own process writes its state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from covey.errors import RunDirectoryError
from covey.runlog.directory import Inside, RunDirectory
from covey.runlog.files import guard_disk, read_json, write_atomically

WAITING, RUNNING, FINISHED, STOPPED, FAILED = "waiting", "running", "finished", "stopped", "failed"
"""States of a job. `stopped` has a checkpoint to resume from; `failed` ended with an error."""


@dataclass(frozen=True, slots=True)
class SweepJob:
    """One job of a sweep."""

    number: int
    name: str
    """Its run name: the number and the swept values."""
    swept: Mapping[str, str]
    """The swept keys with this job's values, as given."""
    max_steps: int | None = None
    """Optimiser steps of the run, if the config sets them."""


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job."""

    state: str = WAITING
    seconds: float = 0.0
    """Total run time of its finished processes."""
    since: float | None = None
    """Start of the running process, in seconds since 1970."""
    exit_code: int | None = None
    """Exit code of the last process; negative for a signal."""

    def elapsed(self, now: float) -> float:
        """Total run time until now, in seconds."""
        return self.seconds + (max(0.0, now - self.since) if self.since is not None else 0.0)

    def started(self) -> JobState:
        """The state after the start of its process."""
        return replace(self, state=RUNNING, since=time.time(), exit_code=None)

    def ended(self, state: str, exit_code: int | None) -> JobState:
        """The state after the end of its process."""
        return JobState(state, self.elapsed(time.time()), None, exit_code)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The table of jobs."""

    keys: tuple[str, ...]
    """The swept keys, in the order of the command line."""
    jobs: tuple[SweepJob, ...]
    directory: str
    """The jobs' working directory, which relative paths in a config start from."""


@dataclass(frozen=True, slots=True)
class SweepDirectory:
    """One sweep's folder, `output_dir/sweep name`. Creating the object does not touch the disk."""

    root: Path

    table = Inside("sweep.json")
    markdown = Inside("sweep.md")
    csv = Inside("sweep.csv")
    launcher = Inside(".hydra")
    """Files of Hydra and its launchers."""

    def run(self, job: SweepJob) -> RunDirectory:
        return RunDirectory(self.root / job.name)

    def config(self, job: SweepJob) -> Path:
        """The job's full config, which `covey train --config` runs."""
        return self.root / "jobs" / f"{job.name}.yaml"

    def output(self, job: SweepJob) -> Path:
        """The job's output."""
        return self.root / "jobs" / f"{job.name}.log"

    def read(self) -> Sweep:
        """Read the table of jobs. Raises a `RunDirectoryError` if it is missing or not readable."""
        try:
            content = read_json(self.table)
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
        """Write the table of jobs."""
        with guard_disk("the sweep", self.root):
            write_atomically(self.table, json.dumps(asdict(sweep), indent=2, ensure_ascii=False) + "\n")

    def state(self, job: SweepJob) -> JobState:
        """The job's state; waiting until one was written."""
        try:
            content: dict[str, Any] = read_json(self._state(job))
        except FileNotFoundError:
            return JobState()
        return JobState(**content)

    def write_state(self, job: SweepJob, state: JobState) -> None:
        """Write the job's state."""
        with guard_disk("the sweep", self.root):
            write_atomically(self._state(job), json.dumps(asdict(state)) + "\n")

    def _state(self, job: SweepJob) -> Path:
        return self.root / "jobs" / f"{job.name}.json"
