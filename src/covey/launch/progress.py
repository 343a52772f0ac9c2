"""Files by which training processes show their progress and how they ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from covey.runlog.directory import RunDirectory

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
