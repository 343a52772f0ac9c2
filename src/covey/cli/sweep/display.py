"""The display of a running sweep: one live line per job, or plain lines without a terminal.

It reads the sweep's folder only, so jobs may run anywhere.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from covey.evaluation.figures import estimate_text
from covey.report.sweep import JobResult, Sheet, read_figures
from covey.runlog.sweep import FAILED, FINISHED, RUNNING, STOPPED, WAITING, Sweep, SweepDirectory
from covey.training.terminal import duration

_STYLES = {WAITING: "dim", RUNNING: "bold", FINISHED: "green", STOPPED: "yellow", FAILED: "red"}
_INTERVAL = 1.0
"""Seconds between two reads of the folder."""
_LINES_AROUND = 6
"""Rows of the screen not used by the table: its heading, rules and the lines above it."""


class SweepDisplay:
    """The live display of a sweep, a context manager. `console.print(display)` prints its current state."""

    def __init__(self, directory: SweepDirectory, sweep: Sweep, numbers: Sequence[int], console: Console) -> None:
        """Prepare the display, which shows nothing until it is entered."""
        self._directory = directory
        self._jobs = [job for job in sweep.jobs if job.number in numbers]
        self._console = console
        self._printed: dict[int, str] = {}
        self._results: list[JobResult] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._live: Live | None = None

    def __enter__(self) -> SweepDisplay:
        self._read()
        self._printed = {one.job.number: one.state.state for one in self._results}
        if self._console.is_terminal and self._console.is_interactive:
            self._live = Live(self, console=self._console, refresh_per_second=2, transient=True)
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()
        self._read()
        if self._live is None:
            self._print_changes()
        else:
            self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(max(4, console.height - _LINES_AROUND))

    def _watch(self) -> None:
        while not self._end.wait(_INTERVAL):
            self._read()
            if self._live is None:
                self._print_changes()

    def _read(self) -> None:
        before = {one.job.number: one for one in self._results}
        found = []
        for job in self._jobs:
            state, last = self._directory.state(job), before.get(job.number)
            if last is not None and last.state == state and state.state != RUNNING:
                found.append(last)
            else:
                found.append(JobResult(job, state, read_figures(self._directory.run(job))))
        self._results = found

    def _print_changes(self) -> None:
        """Print a plain line for each job whose state has changed."""
        for one in self._results:
            state = one.state.state
            if self._printed.get(one.job.number) != state:
                self._printed[one.job.number] = state
                self._console.print(Text("  ".join(self._cells(one))), soft_wrap=True)

    def _cells(self, one: JobResult) -> list[str]:
        """A job's name, state, step, accuracy and duration."""
        shown = one.figures
        known = f"/{one.job.max_steps}" if one.job.max_steps else ""
        cells = [one.job.name, one.state.state]
        cells.append(f"step {shown.step}{known}" if one.state.state != WAITING else "")
        accuracy = shown.before if math.isnan(shown.accuracy.value) else shown.accuracy
        cells.append("" if math.isnan(accuracy.value) else f"{shown.metric} {estimate_text(accuracy, shown.metric)}")
        seconds = one.state.elapsed(time.time())
        cells.append(duration(seconds) if seconds else "")
        return cells if self._live is not None else [cell for cell in cells if cell]

    def _table(self, room: int) -> Table:
        table = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False)
        for column in range(5):
            table.add_column(no_wrap=True, justify="right" if column == 4 else "left", overflow="ellipsis")
        # Two above the first running job.
        running = (row for row, one in enumerate(self._results) if one.state.state == RUNNING)
        first = max(0, min(next(running, 0) - 2, len(self._results) - room))
        shown = self._results[first : first + room]
        for one in shown:
            name, state, *others = self._cells(one)
            table.add_row(Text(name), Text(state, style=_STYLES[state]), *map(Text, others))
        if len(shown) < len(self._results):
            counts = [(state, sum(one.state.state == state for one in self._results)) for state in _STYLES]
            table.add_row(Text(", ".join(f"{count} {state}" for state, count in counts if count), style="dim"))
        return table


def as_table(sheet: Sheet) -> Table:
    """A sheet as a table for the console."""
    table = Table(box=SIMPLE_HEAD)
    for heading in sheet.headings:
        table.add_column(heading, justify="left" if heading == "state" else "right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table
