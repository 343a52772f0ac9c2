"""What training processes leave in files: whether they get on, and how they ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from covey.runlog.directory import RunDirectory

FINISH_FILE = "COVEY_FINISH_FILE"
"""Environment variable of training processes: where each writes how it ended, `{rank}` in place of its rank."""
STACKS_FILE = "COVEY_STACKS_FILE"
"""... and where it writes the stacks of its threads when it is asked to, `{rank}` in place of its rank."""
FINISHES, STACKS = "finish-*.json", "stacks-*.txt"
"""The files of all ranks, in the folder of the run's logs."""


class Progress:
    """When a run last got on: by the files that it writes, step by step."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._seen, self._at = self._newest(), time.monotonic()

    def seconds_since(self) -> float:
        """Seconds since the last progress that was seen."""
        newest = self._newest()
        if newest != self._seen:
            self._seen, self._at = newest, time.monotonic()
        return time.monotonic() - self._at

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
    """The exit code of training, and whether it ended in order: by itself, and having told its user what was wrong.

    Launchers in between make one code of all that their processes end with; these wrote theirs down themselves.

    Args:
        logs: folder of the files that they wrote.
        code: what the launcher in between ended with.
    """
    told = []
    for path in logs.glob(FINISHES):
        try:
            content = json.loads(path.read_bytes())
            told.append((path.stat().st_mtime, int(content["code"]), bool(content["orderly"])))
        except (OSError, ValueError, KeyError, TypeError):  # being replaced, or of another program
            continue
    failed = [(own, orderly) for _, own, orderly in sorted(told) if own != 0]
    return failed[0] if code != 0 and failed else (code, False)
