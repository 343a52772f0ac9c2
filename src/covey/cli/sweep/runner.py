"""Running one job of a sweep in its own process. Hydra's launchers call this, here or on another machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.config.secrets import environment_of_job
from covey.launch.supervise import RESUMED
from covey.runlog.sweep import FAILED, FINISHED, RUNNING, STOPPED, JobState, SweepDirectory, SweepJob
from covey.workers.signals import STOPS, signal_handler

COMMAND = (sys.executable, "-m", "covey.cli.main", "train")

_CLEAN = {128 + number for number in STOPS} | {-number for number in STOPS}
"""Exit codes of a run that stopped on a signal."""


class JobRunner:
    """Runs the job with a given number, and records its state."""

    def __init__(self, root: Path, command: Sequence[str] = COMMAND) -> None:
        """Prepare the runner.

        Args:
            command: runs one config; `--config FILE` is appended.
        """
        self._directory = SweepDirectory(root.absolute())
        self._command = tuple(command)
        self._child: subprocess.Popen[bytes] | None = None
        self.stopped_by: int | None = None
        """The signal that ended the sweep; later jobs are then not started."""

    def __call__(self, config: Any) -> str:
        """Run job number `config.job` unless the sweep was stopped; returns its state."""
        sweep = self._directory.read()
        (job,) = [one for one in sweep.jobs if one.number == config.job]
        state = self._directory.state(job)
        if self.stopped_by is not None:
            return state.state
        again = RESUMED if state.state == RUNNING else ()  # its process was lost with its machine
        state = state.started()
        self._directory.write_state(job, state)
        code: int | None = None
        try:
            code = self._run(job, sweep.directory, again)
        finally:  # also when a cluster's signal ends this process, and the job with it
            state = state.ended(self._end_state(job, code), code)
            self._directory.write_state(job, state)
        return state.state

    def stop(self, number: int, frame: Any = None) -> None:
        """Signal handler: end the running job with a checkpoint, and start no other. A second signal interrupts it.
        Raises `KeyboardInterrupt` if no job is running in this process."""
        self.stopped_by = number
        if self._child is None:
            raise KeyboardInterrupt
        self._child.send_signal(number)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_child": None}  # a copy for another machine has no process here

    def _run(self, job: SweepJob, folder: str, overrides: Sequence[str]) -> int:
        # Its own process group: a terminal's Ctrl-C must reach it only once, from here; a second one interrupts it.
        with self._directory.output(job).open("ab") as output, _ignoring_slurm_signals():
            self._child = subprocess.Popen(
                [*self._command, "--config", str(self._directory.config(job)), *overrides],
                cwd=folder,
                env={**environment_of_job(job.number), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        try:
            if self.stopped_by is not None:  # the signal came while the process was starting
                self._child.send_signal(self.stopped_by)
            return self._child.wait()
        except BaseException:  # a cluster's signal handlers raise, and the job must end too
            self._child.terminate()
            self._child.wait()
            raise
        finally:
            self._child = None

    def _end_state(self, job: SweepJob, code: int | None) -> str:
        if code == 0:
            return FINISHED if self._directory.run(job).summary.is_file() else STOPPED
        return STOPPED if code is None or code in _CLEAN else FAILED


def describe_end(state: JobState) -> str:
    """How a process ended, for a message."""
    code = state.exit_code
    if code is None:
        return "was interrupted"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextmanager
def _ignoring_slurm_signals() -> Iterator[None]:
    """Context manager: a started process ignores the signals by which Slurm warns of a time limit.

    Slurm sends them to every process of a job step, which they would kill; the launcher handles them and stops the job.
    """
    if "SLURM_JOB_ID" not in os.environ:
        yield
        return
    with signal_handler((signal.SIGUSR1, signal.SIGUSR2), signal.SIG_IGN):
        yield
