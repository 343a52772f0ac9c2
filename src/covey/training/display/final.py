"""What the terminal shows at the end of a run: the table, the findings, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from covey.report.evidence import Finding
from covey.report.summary import Change
from covey.training.display.terminal_text import encodable, readable

Command = tuple[str, str]
"""What a command is for, and the command."""


def before_after_table(rows: Sequence[Change], width: int = 80) -> Table:
    """The final table of a run: each figure before and after, and the change; below it the paired tests of the changes.

    A change is coloured where its test tells it from chance.

    Args:
        rows: the figures.
        width: columns of the terminal; in few of them an interval is on a line of its own.
    """
    notes = ["in brackets: 95% interval"] if any("[" in text for row in rows for text in row.texts) else []
    notes += [f"grader: {grader}" for grader in dict.fromkeys(row.grader for row in rows) if grader]
    tests = [f"{row.label}: {row.test_text}" for row in rows if row.paired.found]
    caption = Text("\n".join([" · ".join(notes), *tests]).strip("\n"))  # not markup: sets have users' names
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_column("")
    for heading in ("before", "after", "points" if all(row.is_share for row in rows) else "change"):
        table.add_column(heading, justify="right", no_wrap=width >= _NARROW)
    for row in rows:
        before, after = (text if width >= _ONE_LINE else text.replace(" [", "\n[") for text in row.texts)
        change = Text(row.values[2], style=_CHANGED[row.verdict])
        table.add_row(Text(row.label), Text(before), Text(after, style="bold"), change)
    return table


def print_findings(console: Console, findings: Sequence[Finding], rows: Sequence[Change] = ()) -> None:
    """Print what the figures of a run mean, each with its figure.

    Args:
        console: wraps them.
        findings: in the order in which they are shown.
        rows: of the table above, whose tests are not said again.
    """
    said = {row.test_text for row in rows if row.paired.found}
    for finding in findings:
        mark, style = _MARKS[finding.level]
        title = finding.title if finding.figure in said else f"{finding.title} ({finding.figure})"
        title, text = (encodable(readable(part), console.encoding) for part in (f"{title}.", finding.text))
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_row(
            Text(encodable(f"  {mark}", console.encoding), style=style), Text.assemble((title, "bold"), f" {text}")
        )
        console.print(grid)


def print_summary(console: Console, table: Table | None, paths: Sequence[tuple[str, Path]]) -> None:
    """Print the final table, if any, and the paths of all results, one unbroken line each."""
    if table is not None:
        console.print(table)
    _print_columns(console, [(label, str(path)) for label, path in paths])


def print_commands(console: Console, commands: Sequence[Command]) -> None:
    """Print commands to go on with, one unbroken line each."""
    if commands:
        console.print()
        _print_columns(console, commands)


def _print_columns(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        console.print(Text.assemble((f"  {label:<{width}}  ", "dim"), text), soft_wrap=True)


_ONE_LINE, _NARROW = 80, 60
_CHANGED = {1: "green", 0: "", -1: "red"}
_MARKS = {"good": ("✓", "green"), "warn": ("!", "yellow"), "note": ("·", "dim")}
