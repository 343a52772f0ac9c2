"""What people see while a sweep runs: one live line per job, or plain lines where there is no terminal.

Everything is read from the sweep's folder, so it does not matter where a job runs.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from covey.report.sweep import JobResult, Sheet, percent, read_figures
from covey.runlog.sweep import FAILED, FINISHED, RUNNING, STOPPED, WAITING, Sweep, SweepDirectory

_STYLES = {WAITING: "dim", RUNNING: "bold", FINISHED: "green", STOPPED: "yellow", FAILED: "red"}
_SECONDS = 1.0
"""Between two looks at the folder."""
_LINES_AROUND = 6
"""Rows of the screen that the table does not use: its heading, rules and what stands above it."""


class SweepDisplay:
    """The live display of a sweep; a context manager. `console.print(display)` prints it as it is now."""

    def __init__(self, directory: SweepDirectory, sweep: Sweep, numbers: Sequence[int], console: Console) -> None:
        """Prepare it; nothing is shown before it is entered.

        Args:
            directory: the sweep's folder.
            sweep: all its jobs.
            numbers: the jobs of this invocation.
            console: where to show them.
        """
        self._directory = directory
        self._jobs = [job for job in sweep.jobs if job.number in numbers]
        self._console = console
        self._told: dict[int, str] = {}
        self._results: list[JobResult] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._live: Live | None = None

    def __enter__(self) -> SweepDisplay:
        self._look()
        self._told = {one.job.number: one.state.state for one in self._results}
        if self._console.is_terminal and self._console.is_interactive:
            self._live = Live(self, console=self._console, refresh_per_second=2, transient=True)
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._look()
        if self._live is None:
            self._tell()
        else:
            self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(max(4, console.height - _LINES_AROUND))

    def _watch(self) -> None:
        while not self._end.wait(_SECONDS):
            self._look()
            if self._live is None:
                self._tell()

    def _look(self) -> None:
        before = {one.job.number: one for one in self._results}
        found = []
        for job in self._jobs:
            state, last = self._directory.state(job), before.get(job.number)
            if last is not None and last.state == state and state.state != RUNNING:
                found.append(last)
            else:
                found.append(JobResult(job, state, read_figures(self._directory.run(job))))
        self._results = found

    def _tell(self) -> None:
        """Print a plain line for each job whose state has changed."""
        for one in self._results:
            state = one.state.state
            if self._told.get(one.job.number) != state:
                self._told[one.job.number] = state
                self._console.print(Text("  ".join(self._cells(one))), soft_wrap=True)

    def _cells(self, one: JobResult) -> list[str]:
        """A job in words: what it is, how it stands, how far it is, what it has reached."""
        shown = one.figures
        known = f"/{one.job.max_steps}" if one.job.max_steps else ""
        cells = [one.job.name, one.state.state]
        cells.append(f"step {shown.step}{known}" if one.state.state != WAITING else "")
        accuracy = shown.before if math.isnan(shown.accuracy.value) else shown.accuracy
        cells.append("" if math.isnan(accuracy.value) else f"accuracy {percent(accuracy)}")
        seconds = one.state.elapsed(time.time())
        cells.append(_clock(seconds) if seconds else "")
        return cells if self._live is not None else [cell for cell in cells if cell]

    def _table(self, room: int) -> Table:
        table = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False)
        for column in range(5):
            table.add_column(no_wrap=True, justify="right" if column == 4 else "left", overflow="ellipsis")
        first = self._first_shown(room)
        shown = self._results[first : first + room]
        for one in shown:
            name, state, *others = self._cells(one)
            table.add_row(Text(name), Text(state, style=_STYLES[state]), *map(Text, others))
        if len(shown) < len(self._results):
            counts = [(state, sum(one.state.state == state for one in self._results)) for state in _STYLES]
            table.add_row(Text(", ".join(f"{count} {state}" for state, count in counts if count), style="dim"))
        return table

    def _first_shown(self, room: int) -> int:
        """Where the shown part of a long list begins: two lines above the first job that is under way."""
        under_way = (row for row, one in enumerate(self._results) if one.state.state == RUNNING)
        return max(0, min(next(under_way, 0) - 2, len(self._results) - room))


def as_table(sheet: Sheet) -> Table:
    """A sheet as a table for the console."""
    table = Table(box=SIMPLE_HEAD)
    for heading in sheet.headings:
        table.add_column(heading, justify="left" if heading == "state" else "right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
