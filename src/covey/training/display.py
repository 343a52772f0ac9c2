"""What people see while a run trains: one panel that redraws in place, or plain lines where there is no terminal.

Everything shown is also appended to the run's log. Completions come from a model and are shown as the plain text they
are: nothing in them is taken for markup, and no control character reaches the terminal.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypedDict

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from covey.runlog import RunDirectory, names
from covey.training.terminal_text import duration, fit, readable, sparkline

DETAILED_STEPS = 20
"""Up to this many steps, plain lines tell of every step; in longer runs of every `LINE_EVERY`th."""
LINE_EVERY = 10
PACE_WINDOW = 20
"""The time left is reckoned from the mean of this many newest steps."""

Estimate = tuple[float, float, float]
"""A share between 0 and 1, and the ends of its 95% interval."""


class Sample(TypedDict):
    """One completion to show. What is not known is None."""

    prompt: str
    completion: str
    answer: str | None
    reward: float | None
    right: bool | None


class _Figure(NamedTuple):
    """A headline figure."""

    metric: str
    label: str
    """What the panel calls it."""
    short: str
    """What a plain line calls it."""
    write: Callable[[float], str]
    write_change: Callable[[float], str] | None = None
    """How its change since the start is written; None when that says little."""


FIGURES = (
    _Figure(names.EVAL_ACCURACY, "held-out accuracy", "accuracy", "{:.1%}".format, lambda d: f"{100 * d:+.1f}"),
    _Figure(names.EVAL_HARD_ACCURACY, "harder set", "harder set", "{:.1%}".format, lambda d: f"{100 * d:+.1f}"),
    _Figure(names.REWARD, "reward", "reward", "{:.2f}".format, "{:+.2f}".format),
    _Figure(names.COMPLETION_LENGTH, "completion length", "length", "{:.1f}".format, "{:+.1f}".format),
    _Figure(names.KL, "KL", "kl", "{:.3g}".format),
)
_LINE_ORDER = (names.REWARD, names.EVAL_ACCURACY, names.EVAL_HARD_ACCURACY, names.COMPLETION_LENGTH, names.KL)


class Display:
    """The live display of one run; a context manager. `console.print(display)` prints the panel as it is now."""

    shows_held_out = False
    """Whether the samples shown are of held-out problems (else of training); whoever hands them over sets it."""

    def __init__(
        self,
        title: str,
        max_steps: int,
        *,
        start_step: int = 0,
        console: Console | None = None,
        log_path: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the display; nothing is shown before it is entered.

        Args:
            title: what is trained on what.
            max_steps: steps of the whole run.
            start_step: steps already done, for a run that goes on.
            console: where to show it; the standard output by default.
            log_path: the file that everything is appended to.
            clock: seconds from any origin.
        """
        self._title = title
        self._max_steps = max(1, max_steps)
        self._start_step = self._step = start_step
        self._console = console or Console()
        self._log_path = log_path
        self._clock = clock
        self._began = self._ticked = clock()
        self._pace: deque[float] = deque(maxlen=PACE_WINDOW)
        self._history: dict[str, list[tuple[int, float]]] = {}
        self._latest: dict[str, Any] = {}
        self._samples: list[Sample] = []
        self._status = ""
        self._told: set[str] = set()
        self._untold: tuple[int, dict[str, Any]] = (start_step, {})
        self._lock = threading.RLock()  # the panel is redrawn by a thread of its own
        self._live = Live(self, console=self._console, refresh_per_second=4) if _can_redraw(self._console) else None

    def __enter__(self) -> Display:
        self._began = self._ticked = self._clock()
        self._log(f"{self._title}: step {self._step} of {self._max_steps}")
        if self._live:
            self._live.start()
        else:
            self._print(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def recall(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the rows of earlier metrics into the curves, when a run goes on; shows and logs nothing."""
        with self._lock:
            for row in rows:
                self._remember(row[names.STEP], row)

    def update(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show the metrics of a step, under our names. They may come in several parts, evaluation first or last."""
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
            self._tell(step, metrics)

    def _tell(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Print a plain line when one is due. An evaluation waits for what training has to say about the same step."""
        if step != self._untold[0]:
            self._tell_rest()
            self._untold = (step, {})
        self._untold[1].update(metrics)
        if names.REWARD in metrics or step == self._start_step:
            self._tell_rest()

    def _tell_rest(self) -> None:
        step, metrics = self._untold
        evaluated = names.EVAL_ACCURACY in metrics
        if metrics and (evaluated or self._is_due(step)):
            self._print(self._line(step, metrics))
            if evaluated and self._samples:
                self._print("  " + fit(_sample_line(self._samples[0]), 110))
        self._untold = (step, {})

    def completions(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Show these completions, each with `prompt`, `completion`, `answer`, `reward` and `right` (see `Sample`)."""
        with self._lock:
            self._samples = [_readable_sample(sample) for sample in samples]
        for sample in self._samples:
            self._log("  " + fit(_sample_line(sample), 2000))

    def note(self, text: str) -> None:
        """Say something that stays: above the panel, or as a line of its own."""
        text = readable(text)
        self._log(text)
        self._print(f"· {text}")

    def status(self, text: str) -> None:
        """Say what is going on; it vanishes with the next update. Nothing, to say nothing."""
        with self._lock:
            self._status = text = readable(text)
        if not text:
            return
        self._log(text)
        if not self._live and text not in self._told:  # once is enough for what recurs at every evaluation
            self._told.add(text)
            self._print(text)

    def finish(self) -> None:
        """Draw the panel a last time and leave it standing. May be called again."""
        with self._lock:
            self._status = ""
        self._tell_rest()
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

    def _is_due(self, step: int) -> bool:
        return self._max_steps <= DETAILED_STEPS or step % LINE_EVERY == 0 or step >= self._max_steps

    def _line(self, step: int, metrics: Mapping[str, Any]) -> str:
        """One plain line of what this update brings."""
        parts = [f"step {step}/{self._max_steps}"]
        figures = {figure.metric: figure for figure in FIGURES}
        for figure in (figures[name] for name in _LINE_ORDER):
            value = metrics.get(figure.metric)
            if isinstance(value, int | float) and math.isfinite(value):
                change = self._change(figure) if figure.metric.startswith("eval") else ""
                parts.append(f"{figure.short} {figure.write(value)}" + (f" ({change})" if change else ""))
        if speed := metrics.get(names.COMPLETIONS_PER_SECOND):
            parts.append(f"{_speed(speed)} completions/s")
        if self._pace and step < self._max_steps:
            parts.append(f"left {duration(self._left())}")
        return "  ".join(parts)

    def _change(self, figure: _Figure) -> str:
        points = self._history.get(figure.metric, [])
        if figure.write_change is None or not points or points[-1][0] == points[0][0]:
            return ""
        return figure.write_change(points[-1][1] - points[0][1])

    def _left(self) -> float:
        """Seconds until the last step, by the pace of the newest steps."""
        pace = sum(self._pace) / len(self._pace)
        return max(0.0, pace * (self._max_steps - self._step) - (self._clock() - self._ticked))

    def _panel(self, width: int, height: int) -> Panel:
        inner = width - 4  # borders and padding
        parts: list[RenderableType] = [self._progress(), Text(), self._figures(inner)]
        below = 1 if self._status else 0
        used = 2 + 2 + 1 + sum(figure.metric in self._latest for figure in FIGURES) + 1 + below
        parts += self._sample_lines(inner, height - 1 - used)
        if self._status:
            parts.append(Spinner("dots", Text(fit(self._status, inner - 2), style="dim"), style="cyan"))
        title = Text(fit(readable(self._title), inner - 4), style="bold")
        return Panel(Group(*parts), title=title, title_align="left", border_style="dim", padding=(0, 1), width=width)

    def _progress(self) -> RenderableType:
        share = min(1.0, self._step / self._max_steps)
        times = f"elapsed {duration(self._clock() - self._began)}"
        if self._pace and self._step < self._max_steps:
            times += f"   left {duration(self._left())}"
        line = Table.grid(expand=True)
        line.add_column(ratio=1, no_wrap=True)
        line.add_column(justify="right", no_wrap=True)
        line.add_row(Text(f"step {self._step}/{self._max_steps}   {share:.0%}"), Text(times, style="dim"))
        return Group(line, ProgressBar(total=self._max_steps, completed=self._step))

    def _figures(self, width: int) -> Table:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(justify="right", style="bold", no_wrap=True)
        grid.add_column(justify="right", style="green", no_wrap=True)
        grid.add_column(no_wrap=True)
        curve_width = min(60, width - 37)
        for figure in FIGURES:
            if figure.metric in self._latest:
                curve = sparkline(self._history[figure.metric], self._step, curve_width)
                value = figure.write(self._latest[figure.metric])
                grid.add_row(figure.label, value, self._change(figure), Text(curve, style="cyan"))
        speed = self._latest.get(names.COMPLETIONS_PER_SECOND)
        grid.add_row("completions/s", _speed(speed) if speed else "…")
        return grid

    def _sample_lines(self, width: int, room: int) -> list[RenderableType]:
        """The samples, two lines each (three where the completion is long), as many as there is room for."""
        if not self._samples or room < 4:
            return []
        lines: list[RenderableType] = [Text(), Text(self._samples_heading(), style="dim")]
        for sample in self._samples:
            body = chop_cells(fit(sample["completion"], 2 * (width - 2) - 1), width - 2)
            if len(lines) + 1 + len(body) > room:
                break
            facts = _facts(sample)
            mark, style = _MARKS[sample["right"]]
            head = Table.grid(expand=True, padding=(0, 1, 0, 0))
            head.add_column(no_wrap=True)
            head.add_column(ratio=1, no_wrap=True)
            head.add_column(no_wrap=True, justify="right")
            prompt = fit(sample["prompt"], width - 5 - cell_len(facts))
            head.add_row(Text(mark, style=style), Text(prompt, style="bold"), Text(facts, style="dim"))
            lines += [head, *(Text("  " + line, no_wrap=True) for line in body)]
        return lines if len(lines) > 2 else []

    def _samples_heading(self) -> str:
        return "what it writes on held-out problems" if self.shows_held_out else "what it writes"

    def _print(self, text: str) -> None:
        encoding = self._console.encoding
        text = text.encode(encoding, "replace").decode(encoding)  # a terminal that lacks a sign must not end the run
        self._console.print(Text(text), soft_wrap=True)

    def _log(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
        with (
            RunDirectory(self._log_path.parent).guard(self._log_path.name),
            self._log_path.open("ab", buffering=0) as file,  # unbuffered: a note may come from a signal's handler
        ):
            file.write(line.encode(errors="replace"))


def before_after_table(rows: Sequence[tuple[str, Estimate, Estimate]]) -> Table:
    """The table that a run ends with: each measure before and after, its 95% interval, and the change in points."""
    table = Table(box=SIMPLE_HEAD, caption="in brackets: 95% interval", caption_justify="left")
    table.add_column("")
    for heading in ("before", "after", "points"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, before, after in rows:
        gain = 100 * (after[0] - before[0])
        change = Text("n/a") if math.isnan(gain) else Text(f"{gain:+.1f}", style="green" if gain > 0 else "red")
        table.add_row(Text(label), Text(_estimate(before)), Text(_estimate(after), style="bold"), change)
    return table


def print_summary(console: Console, table: Table | None, paths: Sequence[tuple[str, Path]]) -> None:
    """Print the final table, where there is one, and where everything lies: one unbroken line a path."""
    if table is not None:
        console.print(table)
    width = max((len(label) for label, _ in paths), default=0)
    for label, path in paths:
        console.print(Text.assemble((f"  {label:<{width}}  ", "dim"), str(path)), soft_wrap=True)


_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}


def _can_redraw(console: Console) -> bool:
    """Whether this is a terminal that understands cursor movements and the signs that the panel is made of."""
    return console.is_interactive and console.file.isatty() and console.encoding.lower().startswith("utf")


def _estimate(estimate: Estimate) -> str:
    mean, low, high = (100 * number for number in estimate)
    return "n/a" if math.isnan(mean) else f"{mean:.1f}%  [{low:.1f} to {high:.1f}]"


def _speed(per_second: float) -> str:
    return f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.1f}"


def _readable_sample(sample: Mapping[str, Any]) -> Sample:
    answer = sample.get("answer")
    return Sample(
        prompt=readable(sample["prompt"]),
        completion=readable(sample["completion"]),
        answer=None if answer is None else readable(answer),
        reward=sample.get("reward"),
        right=sample.get("right"),
    )


def _facts(sample: Sample) -> str:
    parts = [] if sample["answer"] is None else [f"answer {fit(sample['answer'], 20)}"]
    if sample["reward"] is not None:
        parts.append(f"reward {sample['reward']:.2f}")
    return "  ".join(parts)


def _sample_line(sample: Sample) -> str:
    return f"{_MARKS[sample['right']][0]} {sample['prompt']}  {_facts(sample)} | {sample['completion']}"
