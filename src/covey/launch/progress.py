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
_LOOK_EVERY = 0.5
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
        self._looked = self._at

    def seconds_since(self) -> float:
        """Seconds since the last progress that was seen."""
        now = time.monotonic()
        if now - self._looked > _LOOK_EVERY:  # the files may lie on a file system that is slow to tell
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
    """The exit code of training, and whether it ended in order: by itself, and having told its user what was wrong.

    A launcher in between (accelerate's, torch's) makes one code of all that its processes end with, and ends those that
    are left; they wrote down themselves how they ended, unless they were killed.

    Args:
        logs: folder of the files that they wrote.
        code: what was seen from outside.
    """
    told: dict[int, bool] = {}
    for path in logs.glob(FINISHES):
        try:
            content = json.loads(path.read_bytes())
            told[int(content["code"])] = bool(content["orderly"]) and told.get(int(content["code"]), True)
        except (OSError, ValueError, KeyError, TypeError):  # being replaced, or of another program
            continue
    if code in told:
        return code, told[code]
    in_order = [own for own, orderly in told.items() if own and orderly]
    return (in_order[0], True) if in_order and 0 < code < 128 else (code, False)
