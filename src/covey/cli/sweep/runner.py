"""Running one job of a sweep in a process of its own. Hydra's launchers call this, here or on another machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.runlog.sweep import FAILED, FINISHED, STOPPED, JobState, SweepDirectory, SweepJob

COMMAND = (sys.executable, "-m", "covey.cli.main", "train")

_STOPS = (signal.SIGINT, signal.SIGTERM)
_CLEAN = {128 + number for number in _STOPS} | {-number for number in _STOPS}
"""Exit codes of a run that was asked to stop, and did."""


class JobRunner:
    """Runs the job whose number it is called with, and writes down how it stands."""

    def __init__(self, root: Path, command: Sequence[str] = COMMAND) -> None:
        """Prepare it.

        Args:
            root: the sweep's folder.
            command: what runs one config; `--config FILE` is appended.
        """
        self._directory = SweepDirectory(root.absolute())
        self._command = tuple(command)
        self._child: subprocess.Popen[bytes] | None = None
        self.stopped_by: int | None = None
        """The signal that ended the sweep; later jobs are then left waiting."""

    def __call__(self, config: Any) -> str:
        """Run job number `config.job` unless the sweep was stopped; returns its state."""
        sweep = self._directory.read()
        (job,) = [one for one in sweep.jobs if one.number == config.job]
        state = self._directory.state(job)
        if self.stopped_by is not None:
            return state.state
        state = state.started()
        self._directory.write_state(job, state)
        code: int | None = None
        try:
            code = self._run(job, sweep.directory)
        finally:  # also when a cluster's signal ends this process: the job has then been stopped as well
            state = state.ended(self._judge(job, code), code)
            self._directory.write_state(job, state)
        return state.state

    def stop(self, number: int, frame: Any = None) -> None:
        """Take a signal: end the running job with a checkpoint, and start none after it. A second one interrupts it.

        Raises:
            KeyboardInterrupt: no job is running in this process, so there is nothing to wait for.
        """
        self.stopped_by = number
        if self._child is None:
            raise KeyboardInterrupt
        self._child.send_signal(number)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_child": None}  # a copy for another machine has no process here

    def _run(self, job: SweepJob, folder: str) -> int:
        # In a group of its own, so that a terminal's Ctrl-C comes once, from here: a second one would interrupt it.
        with self._directory.output(job).open("ab") as output, _deaf_to_slurm():
            self._child = subprocess.Popen(
                [*self._command, "--config", str(self._directory.config(job))],
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        try:
            if self.stopped_by is not None:  # the signal came while the process was being made
                self._child.send_signal(self.stopped_by)
            return self._child.wait()
        except BaseException:  # a cluster's signal handlers raise, and the job must not outlive them
            self._child.terminate()
            self._child.wait()
            raise
        finally:
            self._child = None

    def _judge(self, job: SweepJob, code: int | None) -> str:
        if code == 0:
            return FINISHED if self._directory.run(job).summary.is_file() else STOPPED
        return STOPPED if code is None or code in _CLEAN else FAILED


def describe_end(state: JobState) -> str:
    """How a process ended, in words."""
    code = state.exit_code
    if code is None:
        return "was interrupted"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextmanager
def _deaf_to_slurm() -> Iterator[None]:
    """Within, start a process that passes over the signals by which Slurm warns before a time limit.

    Slurm sends them to every process of a job step, and they would kill one that does not expect them; the launcher
    takes them and has the job stopped properly.
    """
    if "SLURM_JOB_ID" not in os.environ:
        yield
        return
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
