"""The live display of a run, its panel, and what it leaves behind.

The display is one panel that redraws in place, or plain lines without a terminal. The panel's columns have fixed
widths, so that nothing moves when a figure gets another digit. Everything shown is also appended to the run's log.
Completions are shown as plain text: no markup in them is interpreted, and no control character reaches the terminal.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from covey.report.completion_findings import Finding
from covey.report.summary import Change
from covey.runlog import RunDirectory, names
from covey.training.terminal import duration, encodable, fit, live, readable, sparkline

DETAILED_STEPS = 20
"""Up to this many steps, every step has a plain line; in longer runs every `LINE_EVERY`th."""
LINE_EVERY = 10
PACE_WINDOW = 20
"""The time left is estimated from the mean of this many newest steps."""


class _Headline(NamedTuple):
    """A headline metric."""

    metric: str
    label: str
    """Its name in the panel."""
    short: str
    """Its name in a plain line."""
    format: Callable[[float], str]
    format_change: Callable[[float], str] | None = None
    """Formats its change since the start; None to leave it out."""


HEADLINES = (
    _Headline(names.EVAL_ACCURACY, "held-out accuracy", "accuracy", "{:.1%}".format, lambda d: f"{100 * d:+.1f}"),
    _Headline(names.EVAL_HARD_ACCURACY, "harder set", "harder set", "{:.1%}".format, lambda d: f"{100 * d:+.1f}"),
    _Headline(names.REWARD, "reward", "reward", "{:.2f}".format, "{:+.2f}".format),
    _Headline(names.COMPLETION_LENGTH, "completion length", "length", "{:.1f}".format, "{:+.1f}".format),
    _Headline(names.TOOL_CALLS, "tool calls", "calls", "{:.2f}".format, "{:+.2f}".format),
    _Headline(names.ENVIRONMENT_TURNS, "turns", "turns", "{:.1f}".format, "{:+.1f}".format),
    _Headline(names.KL, "KL", "kl", "{:.3g}".format),
    _Headline(names.TOKEN_ACCURACY, "token accuracy", "tokens right", "{:.1%}".format, lambda d: f"{100 * d:+.1f}"),
)


class Display:
    """The live display of one run; a context manager. `console.print(display)` prints the current panel."""

    shows_held_out = False
    """Whether the samples are of held-out problems (else of training); set by the caller of `completions`."""
    hint = ""
    """What keys do; set by who handles them."""

    def __init__(
        self,
        title: str,
        max_steps: int,
        *,
        start_step: int = 0,
        console: Console | None = None,
        log_path: Path,
        best_by: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is shown before the display is entered.

        Args:
            title: model and data.
            max_steps: steps of the whole run.
            start_step: steps already done, for a resumed run.
            console: the standard output by default.
            log_path: everything is appended to this file.
            best_by: `evaluation.best_by`: the metric of the held-out problems that is shown, besides their accuracy.
            clock: seconds from any origin.
        """
        self._title = title
        self._max_steps = max(1, max_steps)
        self._start_step = self._step = start_step
        self._console = console or Console()
        self._log_path = log_path
        self._best_by = best_by
        self._clock = clock
        self._began = self._ticked = clock()
        self._pace: deque[float] = deque(maxlen=PACE_WINDOW)
        self._history: dict[str, list[tuple[int, float]]] = {}
        self._latest: dict[str, Any] = {}
        self._samples: list[ShownCompletion] = []
        self._status = ""
        self._printed: set[str] = set()
        self._pending: tuple[int, dict[str, Any]] = (start_step, {})
        self._lock = threading.RLock()  # the panel is redrawn by another thread
        self._drawn = (0, 0)  # the width of the panel, and the most lines that it has had
        self._live = live(self, self._console)

    def __enter__(self) -> Display:
        self._began = self._ticked = self._clock()
        self._log(f"{self._title}: step {self._step} of {self._max_steps}")
        if self._live:
            self._live.start()
        else:
            self._print(self._title)
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    @property
    def redraws(self) -> bool:
        """Whether there is a panel, which redraws in place."""
        return self._live is not None

    def load_history(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the rows of earlier metrics to the curves, for a resumed run; shows and logs nothing."""
        with self._lock:
            for row in rows:
                self._remember(row[names.STEP], row)

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show the metrics of a step, by Covey's names. They may come in several parts, evaluation first or last."""
        with self._lock:
            now = self._clock()
            if step > self._step:
                self._pace.append((now - self._ticked) / (step - self._step))
                self._step = step
                self._ticked = now
            elif step == self._start_step:
                self._ticked = now  # an evaluation before the first step says nothing about the pace
            self._status = ""
            self._remember(step, metrics)
        self._log(self._line(step, metrics))
        if not self._live:
            self._print_step(step, metrics)

    def _print_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Print a plain line if one is due. An evaluation waits for the training metrics of its step."""
        if step != self._pending[0]:
            self._print_pending()
            self._pending = (step, {})
        self._pending[1].update(metrics)
        if names.REWARD in metrics or names.TOKEN_ACCURACY in metrics or step == self._start_step:
            self._print_pending()

    def _print_pending(self) -> None:
        step, metrics = self._pending
        evaluated = any(map(names.evaluated_set, metrics))
        due = self._max_steps <= DETAILED_STEPS or step % LINE_EVERY == 0 or step >= self._max_steps
        if metrics and (evaluated or due):
            self._print(self._line(step, metrics))
            if evaluated and self._samples:
                self._print("  " + _sample_line(self._samples[0], 110))
        self._pending = (step, {})

    def completions(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Show these completions, each as a `ShownCompletion`."""
        with self._lock:
            self._samples = [_readable_sample(sample) for sample in samples]
        for sample in self._samples:
            self._log("  " + _sample_line(sample, 2000))

    def warn(self, text: str) -> None:
        """Print a warning, which the log has already, above the panel if there is one."""
        self._print(f"! {readable(text)}", "yellow")

    def status(self, text: str) -> None:
        """Show the current activity until the next update; an empty text clears it."""
        with self._lock:
            self._status = text = readable(text)
        if not text:
            return
        self._log(text)
        if not self._live and text not in self._printed:  # printed once, as it recurs at every evaluation
            self._printed.add(text)
            self._print(text)

    def finish(self) -> None:
        """Draw the panel a last time and keep it on the screen. May be called again."""
        with self._lock:
            self._status, self._drawn = "", (0, 0)
        self._print_pending()
        if self._live and self._live.is_started:
            self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            yield self._panel(options.max_width, console.height)

    def _remember(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self._latest[name] = value
                self._history.setdefault(name, []).append((step, value))

    def _line(self, step: int, metrics: Mapping[str, Any]) -> str:
        """One plain line of this update."""
        parts = [f"step {step}/{self._max_steps}"]
        for headline in sorted(self._headlines(), key=lambda one: one.metric != names.REWARD):
            value = metrics.get(headline.metric)
            if isinstance(value, int | float) and math.isfinite(value):
                change = self._change(headline) if headline.metric.startswith("eval") else ""
                parts.append(f"{headline.short} {headline.format(value)}" + (f" ({change})" if change else ""))
        if speed := metrics.get(names.COMPLETIONS_PER_SECOND):
            parts.append(f"{_speed(speed)} completions/s")
        if self._pace and step < self._max_steps:
            parts.append(f"left {duration(self._left())}")
        return "  ".join(parts)

    def _headlines(self) -> list[_Headline]:
        """The metrics to show; first what decides which evaluation is the best, where that is not the accuracy."""
        decides = names.best_metric([self._latest], self._best_by)
        if decides is None or decides.endswith(f"/{names.ACCURACY}"):
            return [*HEADLINES]
        metric = decides.partition("/")[2]
        label = f"held-out {metric.removeprefix(f'{names.MEAN_REWARD}/').replace('_', ' ')}"
        return [_Headline(decides, label, label, "{:.3g}".format, "{:+.3g}".format), *HEADLINES]

    def _change(self, headline: _Headline) -> str:
        points = self._history.get(headline.metric, [])
        if headline.format_change is None or not points or points[-1][0] == points[0][0]:
            return ""
        return headline.format_change(points[-1][1] - points[0][1])

    def _left(self) -> float:
        """Seconds until the last step, by the pace of the newest steps."""
        pace = sum(self._pace) / len(self._pace)
        return max(0.0, pace * (self._max_steps - self._step) - (self._clock() - self._ticked))

    def _panel(self, width: int, height: int) -> Panel:
        left = self._left() if self._pace and self._step < self._max_steps else None
        content = _PanelContent(
            title=self._title,
            step=self._step,
            max_steps=self._max_steps,
            elapsed=self._clock() - self._began,
            left=left,
            figures=self._figures(),
            samples=self._samples,
            samples_heading="completions on held-out problems" if self.shows_held_out else "completions",
            status=self._status,
            hint=self.hint,
        )
        before = self._drawn[1] if self._drawn[0] == width else 0
        panel, lines = _draw(content, width, height, least=before)
        self._drawn = width, lines
        return panel

    def _figures(self) -> list[_Figure]:
        shown = [one for one in self._headlines() if one.metric in self._latest]
        found = [
            _Figure(one.label, one.format(self._latest[one.metric]), self._change(one), self._history[one.metric])
            for one in shown
        ]
        speed = self._latest.get(names.COMPLETIONS_PER_SECOND)
        if names.TOKEN_ACCURACY in self._latest:  # supervised training samples nothing
            loss = self._history.get(names.LOSS, [])
            return [*found, *(_Figure("loss", f"{value:.3f}", points=loss) for _, value in loss[-1:])]
        return [*found, _Figure("completions/s", _speed(speed) if speed else "…")]

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(encodable(text, self._console.encoding), style=style), soft_wrap=True)

    def _log(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
        with (
            RunDirectory(self._log_path.parent).guard(self._log_path.name),
            self._log_path.open("ab", buffering=0) as file,  # unbuffered: a status may come from a signal handler
        ):
            file.write(line.encode(errors="replace"))


def _speed(per_second: float) -> str:
    return f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.1f}"


_LABELS, _VALUE, _CHANGE = (17, 28), 9, 8
_WIDE = 120
"""Columns within the frame from which the completions are beside the figures."""
_GAP = 4


class ShownCompletion(TypedDict):
    """One completion to show. Unknown values are None."""

    prompt: str
    completion: str
    answer: str | None
    reward: float | None
    right: bool | None


@dataclass(frozen=True, slots=True)
class _Figure:
    """One line of figures, formatted."""

    label: str
    value: str
    change: str = ""
    """Since the start of the run."""
    points: Sequence[tuple[int, float]] = ()
    """Step and value, for the curve."""


@dataclass(frozen=True, slots=True)
class _PanelContent:
    """What the panel shows."""

    title: str
    step: int
    max_steps: int
    elapsed: float
    left: float | None
    """Seconds until the last step, as far as known."""
    figures: Sequence[_Figure]
    samples: Sequence[ShownCompletion]
    samples_heading: str
    status: str
    """What is going on besides training steps."""
    hint: str
    """What keys do."""


def _draw(content: _PanelContent, width: int, height: int, least: int = 0) -> tuple[Panel, int]:
    """The panel, and its number of lines: fewer than the terminal has, if that has enough for the figures.

    Args:
        width: columns of the terminal.
        height: lines of the terminal.
        least: lines that the panel has at least, if the terminal has them: it would jump with every completion.
    """
    inner = width - 4  # borders and padding
    below = [_bottom(content, inner)] if content.status or content.hint else []
    top = _progress(content, inner)
    room = height - 1 - 2 - len(top) - len(below)
    wide = inner >= _WIDE
    left = max(66, 2 * inner // 5) if wide else inner
    lines = _figure_lines(content, left)
    right = _sample_lines(content, inner - left - _GAP, room + 1)[1:] if wide else []
    if wide and right:
        lines = [_side_by_side(lines, right, left)]
        count = max(len(content.figures), len(right))
    else:
        lines += _sample_lines(content, inner, room - len(lines))
        count = len(lines)
    padding = max(0, min(least, height - 1) - 2 - len(top) - count - len(below))
    body = Group(*top, *lines, *[Text()] * padding, *below)
    title = Text(fit(readable(content.title), inner - 4), style="bold")
    panel = Panel(body, title=title, title_align="left", border_style="dim", padding=(0, 1), width=width)
    return panel, 2 + len(top) + count + padding + len(below)


def _progress(content: _PanelContent, width: int) -> list[RenderableType]:
    share = min(1.0, content.step / content.max_steps)
    times = f"elapsed {duration(content.elapsed)}"
    if content.left is not None:
        times += f"   left {duration(content.left)}"
    steps = f"step {content.step}/{content.max_steps}   {share:.0%}"
    line = Text(set_cell_size(steps, max(len(steps) + 1, width - len(times))), no_wrap=True)
    return [line.append(times, "dim"), ProgressBar(total=content.max_steps, completed=content.step), Text()]


def _figure_lines(content: _PanelContent, width: int) -> list[RenderableType]:
    least, most = _LABELS
    labels = min(most, max([least, *(cell_len(figure.label) for figure in content.figures)]))
    lines: list[RenderableType] = []
    for figure in content.figures:
        curve = sparkline(figure.points, content.step, width - labels - 2 - _VALUE - _CHANGE - 2)
        label = set_cell_size(fit(figure.label, labels), labels + 2)
        value, change = f"{figure.value:>{_VALUE}}", f"{figure.change:>{_CHANGE}}  "
        lines.append(Text.assemble((label, "dim"), (value, "bold"), change, (curve, "cyan"), no_wrap=True))
    return lines


def _side_by_side(left: Sequence[RenderableType], right: Sequence[RenderableType], width: int) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(width=width + _GAP)
    grid.add_column(ratio=1)
    grid.add_row(Group(*left), Group(*right))
    return grid


def _sample_lines(content: _PanelContent, width: int, room: int) -> list[RenderableType]:
    """A blank line, a heading, and the samples, two lines each (three if the completion is long), as many as fit."""
    if not content.samples or room < 4:
        return []
    lines: list[RenderableType] = [Text(), Text(content.samples_heading, style="dim")]
    for sample in content.samples:
        body = chop_cells(fit(sample["completion"], 2 * (width - 2) - 1), width - 2)
        if len(lines) + 1 + len(body) > room:
            break
        mark, style = _COMPLETION_MARKS[sample["right"]]
        details = fit(_details(sample), width // 2)
        space = width - 2 - cell_len(details)
        prompt = set_cell_size(fit(sample["prompt"], space - 1), space)
        lines.append(Text.assemble((f"{mark} ", style), (prompt, "bold"), (details, "dim"), no_wrap=True))
        lines += [Text("  " + line, no_wrap=True) for line in body]
    return lines if len(lines) > 2 else []


def _bottom(content: _PanelContent, width: int) -> RenderableType:
    """What is going on, and what keys do, if there is room for both."""
    hint = fit(content.hint, width)
    if not content.status:
        return Text(hint, style="dim", no_wrap=True)
    status = fit(content.status, width - 2)
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1, no_wrap=True)
    spinner = Spinner("dots", Text(status, style="dim"), style="cyan")
    if hint and 2 + cell_len(status) + 3 + cell_len(hint) <= width:
        grid.add_column(justify="right", no_wrap=True)
        grid.add_row(spinner, Text(hint, style="dim"))
    else:
        grid.add_row(spinner)
    return grid


_COMPLETION_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}
"""How right and wrong completions are marked, with a style."""


def _readable_sample(sample: Mapping[str, Any]) -> ShownCompletion:
    """A completion with texts that are safe to print."""
    answer = sample.get("answer")
    return ShownCompletion(
        prompt=readable(sample["prompt"]),
        completion=readable(sample["completion"]),
        answer=None if answer is None else readable(answer),
        reward=sample.get("reward"),
        right=sample.get("right"),
    )


def _sample_line(sample: ShownCompletion, width: int) -> str:
    """A completion in one line: of a long one, the ends of prompt and completion, and all that lies between."""
    mark, details = _COMPLETION_MARKS[sample["right"]][0], _details(sample)
    room = max(0, width - cell_len(f"{mark}   {details} | "))
    prompt = fit(sample["prompt"], max(room // 2, room - cell_len(sample["completion"])))
    return f"{mark} {prompt}  {details} | {fit(sample['completion'], room - cell_len(prompt))}"


def _details(sample: ShownCompletion) -> str:
    parts = [] if sample["answer"] is None else [f"answer {fit(sample['answer'], 20)}"]
    if sample["reward"] is not None:
        parts.append(f"reward {sample['reward']:.2f}")
    return "  ".join(parts)


Command = tuple[str, str]
"""What a command is for, and the command."""

_ONE_LINE, _NARROW = 80, 60
_CHANGE_STYLES = {1: "green", 0: "", -1: "red"}
_LEVEL_MARKS = {"good": ("✓", "green"), "warn": ("!", "yellow"), "note": ("·", "dim")}


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
        change = Text(row.values[2], style=_CHANGE_STYLES[row.verdict])
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
        mark, style = _LEVEL_MARKS[finding.level]
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
