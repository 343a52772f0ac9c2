"""Refreshing the report during a run, in a separate process, so that no step waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from covey.errors import CoveyError
from covey.runlog import RunDirectory

LEAST_SECONDS = 60.0
"""Minimum interval between two reports during a run."""


class LiveReport:
    """Refreshes `report.html` at the lowest CPU priority. Its errors go to the run's log."""

    def __init__(
        self, run: RunDirectory, *, least_seconds: float = LEAST_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._least_seconds = least_seconds
        self._clock = clock
        self._started = clock()
        self._process: subprocess.Popen[bytes] | None = None

    def refresh(self) -> bool:
        """Start a refresh, unless one is running or the last one is too recent. Returns whether it was started."""
        if self._process is not None and self._process.poll() is None:
            return False
        if self._clock() - self._started < self._least_seconds:
            return False
        self._started = self._clock()
        command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, str(self._run.root)]
        with self._run.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        return True

    def close(self) -> None:
        """Wait for a running refresh; the final report is written at the end of the run."""
        if self._process is not None:
            self._process.wait()
            self._process = None


def main(root: Path) -> int:
    """Write the report of a run at the lowest CPU priority."""
    os.nice(19)
    from covey.report.page import write_report

    try:
        write_report(root)
    except CoveyError as error:
        print(f"report.html was not written: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
