"""The report during a run, refreshed in a separate process so that no step waits for it, and at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from covey.errors import CoveyError
from covey.report.charts.curves import draw_curves
from covey.report.completion_findings import Evidence, Finding
from covey.report.findings import findings
from covey.report.load import load_run
from covey.report.model_card import write_model_card
from covey.report.page import write_report
from covey.report.summary import Change, rows_of
from covey.runlog import RunDirectory
from covey.runlog.metrics import read_metrics

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
        kept = self._run.log if self._run.log.exists() else Path(os.devnull)  # a script's run has none
        with kept.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        with suppress(ProcessLookupError):  # before it loads anything
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
        return True

    def close(self) -> None:
        """Wait for a running refresh; the final report is written at the end of the run."""
        if self._process is not None:
            self._process.wait()
            self._process = None


def main(root: Path) -> int:
    """Write the report of a run."""
    try:
        write_report(root)
    except CoveyError as error:
        print(f"report.html was not written: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def write_end_of_run(run: RunDirectory, *, finished: bool) -> list[str]:
    """Write the report; for a finished run also the curves and the model card.

    Args:
        finished: whether the run reached its last step.

    Returns:
        What could not be written, one sentence each.
    """
    if not run.metrics.is_file() or not run.metrics.stat().st_size:
        return []
    jobs: dict[str, Callable[[], object]] = {run.report.name: lambda: write_report(run.root)}
    if finished:
        jobs[run.curves.name] = lambda: draw_curves(run.root)
        if run.final_model.is_dir():
            jobs["the model card"] = lambda: write_model_card(run.root, run.final_model)
    problems = []
    for what, write in jobs.items():
        try:
            write()
        except CoveyError as error:
            problems.append(f"{what} was not written: {error}")
    return problems


def conclusions(run: RunDirectory) -> tuple[list[Change], list[Finding]]:
    """What a run changed, and what that means: the rows of the final table, and the findings. Raises a `CoveyError` if
    its files are damaged."""
    if not read_metrics(run.metrics):
        return [], []
    record = load_run(run.root)
    rows = rows_of(record)
    return rows, findings(Evidence.of(record, rows))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
