"""`covey runs`: the runs of a folder as a table, and what one does with a run: its log, its path, deleting it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.advice import command
from covey.cli import config_arguments
from covey.cli.json_output import add_json, print_json
from covey.errors import ConfigError, RunDirectoryError

if TYPE_CHECKING:
    from covey.view.runs import Entry, RunStore


_ACTIONS = {"tail": ("-n", "-f"), "rm": ("-y",), "path": ()}
"""What can be done with a run, and the options of each."""
_OF_THE_LIST = ("--json", "--baseline")
_WIDE = 150
"""Columns of a terminal from which the table has all of its own."""
_LOG_END = 200_000
"""Bytes at the end of a log that are read for its last lines."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "runs",
        help="list runs; show the log of one, its path, or delete it",
        usage="covey runs [FOLDER] [--baseline RUN] [--json]\n       covey runs tail|path|rm RUN … [--in FOLDER]",
        description=(
            "List the runs and evaluations in a folder, the newest first: status, model, data, steps, and the newest "
            "held-out figure with its 95% interval. `tail` prints the end of a run's log, `path` its folder, and `rm` "
            "deletes it after a question. RUN is a name from the list, or a folder; a folder called tail, path or rm "
            "is ./tail."
        ),
    )
    parser.add_argument("targets", nargs="*", metavar="FOLDER", help="the folder of runs (out); or an action and RUNs")
    add_json(parser, "print the list as JSON, as `covey view` serves it")
    parser.add_argument("--baseline", metavar="RUN", help="add the paired difference of each run from this one")
    parser.add_argument("--in", dest="folder", default="out", metavar="FOLDER", help="where an action looks (out)")
    parser.add_argument("-n", dest="lines", type=int, metavar="LINES", help="of tail: how many lines (20)")
    parser.add_argument("-f", "--follow", action="store_true", help="of tail: go on until the run ends")
    parser.add_argument("-y", "--yes", action="store_true", help="of rm: do not ask")
    parser.set_defaults(run=run, actions=tuple(_ACTIONS))


def run(arguments: argparse.Namespace) -> int:
    from covey.view.runs import RunStore

    action, *named = arguments.targets or [""]
    acts = action in _ACTIONS
    _check_options(arguments, action if acts else None)
    if not acts:
        if named:
            raise ConfigError(
                f"covey runs lists one folder, and got {len(named) + 1}. With a run: "
                f"{', '.join(command('runs {action} RUN', action=action) for action in _ACTIONS)}."
            )
        return _list(RunStore(Path(action or arguments.folder)), arguments)
    if not named:
        it = command("runs {action}", action=action)
        raise ConfigError(f"{it} needs a run: {it} RUN. `covey runs` lists them.")
    folder = Path(arguments.folder)
    store = RunStore(folder if folder.is_dir() else Path())
    entries = [store.select(name) for name in named]
    if action == "rm":  # each once
        entries = [*{Path(entry.path).absolute(): entry for entry in entries}.values()]
    for entry in entries:
        if action == "path":
            # As it is, also one that is no text; on a terminal as text that is safe to print.
            if isinstance(sys.stdout, TextIOWrapper):
                sys.stdout.reconfigure(errors="surrogateescape")
            path = Path(entry.path).absolute()
            print(_readable(str(path)) if sys.stdout.isatty() else path)
        elif action == "tail":
            _tail(Path(entry.path), 20 if arguments.lines is None else arguments.lines, follow=arguments.follow)
        else:
            _remove(entry, ask=not arguments.yes)
    return 0


def _check_options(arguments: argparse.Namespace, action: str | None) -> None:
    used = {
        **{"--json": arguments.as_json, "--baseline": arguments.baseline is not None},
        **{"-n": arguments.lines is not None, "-f": arguments.follow, "-y": arguments.yes},
    }
    fit = _OF_THE_LIST if action is None else _ACTIONS[action]
    wrong = [option for option, given in used.items() if given and option not in fit]
    if wrong:
        what = "the list of runs" if action is None else command("runs {action}", action=action)
        raise ConfigError(f"{wrong[0]} is no option of {what}. `covey runs --help` explains them.")
    if arguments.lines is not None and arguments.lines < 0:
        raise ConfigError(f"-n {arguments.lines}: the number of lines is 0 or more.")


def _list(store: RunStore, arguments: argparse.Namespace) -> int:
    entries = store.entries()
    differences: Mapping[str, Mapping[str, Any]] = {}
    if arguments.baseline is not None:
        from covey.view.compare import Baseline

        differences = Baseline(store).differences(store.select(arguments.baseline).id, entries)
    if arguments.as_json:
        listed = [
            entry.as_json() | ({"difference": differences[entry.id]} if entry.id in differences else {})
            for entry in entries
        ]
        print_json(listed)
        return 0
    console = config_arguments.make_console()
    if not entries:
        console.print(f"There are no runs in {_readable(str(store.root))}.", markup=False, highlight=False)
        return 0
    _print_table(console, entries, differences if arguments.baseline is not None else None)
    for entry in entries:
        if entry.message:
            console.print(f"{entry.id}: {_readable(entry.message)}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _print_table(console: Any, entries: Sequence[Entry], differences: Mapping[str, Mapping[str, Any]] | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    rows = [_cells(entry, None if differences is None else differences.get(entry.id, {})) for entry in entries]
    filled = [name for name in rows[0] if any(row[name] for row in rows)]
    shown = [name for name in filled if console.width >= _WIDE or name not in _ONLY_WIDE]
    for name in shown:
        table.add_column(name, justify="right" if name in ("step", "tokens", "time") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_readable(row[name])) for name in shown))
    console.print(table)


_ONLY_WIDE = ("objective", "data", "best", "tokens", "time", "tags")


def _cells(entry: Entry, difference: Mapping[str, Any] | None) -> dict[str, str]:
    from covey.evaluation.estimators import Estimate
    from covey.evaluation.figures import estimate_text, value_text
    from covey.report.summary import figure_name
    from covey.training.terminal import duration

    held_out = best = ""
    if entry.metric and entry.value is not None:
        ends = [float("nan") if end is None else end for end in (entry.low, entry.high)]
        figure = estimate_text(Estimate(entry.value, *ends), entry.metric)
        held_out = f"{figure} {figure_name(entry.metric, entry.grader)}"
        best = f"{value_text(entry.best['value'], entry.metric)} at {entry.best['step']:g}" if entry.best else ""
    return {
        "run": entry.id if entry.id != "." else entry.name,
        "status": entry.status,
        "model": entry.model or "",
        "data": entry.data or "",
        "objective": entry.objective or "",
        "step": "" if entry.step is None else f"{entry.step}" + (f"/{entry.max_steps}" if entry.max_steps else ""),
        "held-out": held_out,
        **({} if difference is None else {"difference": _difference(difference, entry.metric)}),
        "best": best,
        "tokens": f"{entry.tokens:,}" if entry.tokens else "",
        "time": duration(entry.seconds) if entry.seconds else "",
        "started": _local(entry.started),
        "tags": ", ".join(entry.tags),
    }


def _difference(found: Mapping[str, Any], metric: str | None) -> str:
    from covey.evaluation.figures import change_ends_text, change_text, p_text

    if found.get("value") is None or not metric:
        return f"not compared: {found['refused']}" if "refused" in found else ""
    low, high = (float("nan") if found[end] is None else found[end] for end in ("low", "high"))
    p_value = found.get("corrected", found["p"])
    return (
        f"{change_text(found['value'], metric)} [{change_ends_text(low, high, metric)}]"
        f", {'corrected ' * ('corrected' in found)}p = {p_text(p_value)}"
    )


def _local(started: str | None) -> str:
    try:
        return datetime.fromisoformat(started or "").astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return ""


def _tail(folder: Path, lines: int, *, follow: bool) -> None:
    """Print the end of a run's log, and with `follow` what is added, until the run ends."""
    from covey.runlog.directory import RunDirectory

    run = RunDirectory(folder)
    if not run.log.is_file() and not (follow and run.is_locked()):
        raise RunDirectoryError(f"{folder} has no {run.log.name}: it is not a run that has begun to train.")
    place = 0
    if run.log.is_file():
        place = run.log.stat().st_size
        with run.log.open("rb") as file:
            file.seek(max(0, place - _LOG_END))
            end = file.read(place - file.tell()).decode(errors="replace").splitlines()
        for line in end[len(end) - lines :] if lines < len(end) else end:
            _print_line(line)
    while follow:
        writing = run.is_locked()  # before the log is read: what a run writes last is still shown
        for part in _added(run.log, place):
            place = part[0]
            _print_line(part[1])
        if not writing:
            return
        time.sleep(0.5)


def _print_line(line: str) -> None:
    """Print a line of a log with its indentation; `readable` drops what a terminal would obey."""
    text = line.rstrip()
    print(" " * (len(text) - len(text.lstrip())) + _readable(text), flush=True)


def _added(log: Path, place: int) -> Iterator[tuple[int, str]]:
    """The whole lines after a place in a log, each with the place after it."""
    if not log.is_file():
        return
    with log.open("rb") as file:
        file.seek(place if place <= log.stat().st_size else 0)  # a long log is emptied
        while (line := file.readline()).endswith(b"\n"):
            yield file.tell(), line.decode(errors="replace")


def _remove(entry: Entry, *, ask: bool) -> None:
    from covey.runlog.directory import RunDirectory

    folder, run = Path(entry.path), RunDirectory(Path(entry.path))
    if folder.is_symlink():
        raise RunDirectoryError(
            f"{folder} is a link to {folder.readlink()}: delete that run, or remove the link by hand."
        )
    run.refuse_locked()
    name = _readable(entry.path)
    if ask and not sys.stdin.isatty():
        raise ConfigError("covey runs rm asks before it deletes, and nobody can answer here: give -y to delete.")
    if ask and not config_arguments.agreed(f"Delete {name} ({entry.status}, {_size(folder)})?"):
        print(f"{name} stays.")
        return
    left = _readable(", ".join(run.delete()))
    print(f"Deleted {name}" + (f", but for what Covey did not write: {left}" if left else ""))


def _size(folder: Path) -> str:
    sizes = [path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return f"{len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB"


def _readable(text: str) -> str:
    from covey.training.terminal import readable

    return readable(text)
