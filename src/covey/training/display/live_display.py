"""The display of a run: one panel that redraws in place, or plain lines without a terminal.

Everything shown is also appended to the run's log. Completions are shown as plain text: no markup in them is
interpreted, and no control character reaches the terminal.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from covey.runlog import RunDirectory, names
from covey.training.display.redrawing import live
from covey.training.display.terminal_text import duration, fit, readable, sparkline

if TYPE_CHECKING:
    from covey.report.summary import Change

DETAILED_STEPS = 20
"""Up to this many steps, every step has a plain line; in longer runs every `LINE_EVERY`th."""
LINE_EVERY = 10
PACE_WINDOW = 20
"""The time left is estimated from the mean of this many newest steps."""


class ShownCompletion(TypedDict):
    """One completion to show. Unknown values are None."""

    prompt: str
    completion: str
    answer: str | None
    reward: float | None
    right: bool | None


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
)


class Display:
    """The live display of one run; a context manager. `console.print(display)` prints the current panel."""

    shows_held_out = False
    """Whether the samples are of held-out problems (else of training); set by the caller of `completions`."""

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
        self._live = live(self, self._console)

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
        if names.REWARD in metrics or step == self._start_step:
            self._print_pending()

    def _print_pending(self) -> None:
        step, metrics = self._pending
        evaluated = any(map(names.evaluated_set, metrics))
        if metrics and (evaluated or self._is_due(step)):
            self._print(self._line(step, metrics))
            if evaluated and self._samples:
                self._print("  " + fit(_sample_line(self._samples[0]), 110))
        self._pending = (step, {})

    def completions(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Show these completions, each as a `ShownCompletion`."""
        with self._lock:
            self._samples = [_readable_sample(sample) for sample in samples]
        for sample in self._samples:
            self._log("  " + fit(_sample_line(sample), 2000))

    def note(self, text: str) -> None:
        """Print a permanent line, above the panel if there is one."""
        text = readable(text)
        self._log(text)
        self._print(f"· {text}")

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
            self._status = ""
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

    def _is_due(self, step: int) -> bool:
        return self._max_steps <= DETAILED_STEPS or step % LINE_EVERY == 0 or step >= self._max_steps

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
        inner = width - 4  # borders and padding
        parts: list[RenderableType] = [self._progress(), Text(), self._headline_table(inner)]
        below = 1 if self._status else 0
        used = 2 + 2 + 1 + sum(headline.metric in self._latest for headline in self._headlines()) + 1 + below
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

    def _headline_table(self, width: int) -> Table:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(justify="right", style="bold", no_wrap=True)
        grid.add_column(justify="right", style="green", no_wrap=True)
        grid.add_column(no_wrap=True)
        curve_width = min(60, width - 37)
        for headline in self._headlines():
            if headline.metric in self._latest:
                curve = sparkline(self._history[headline.metric], self._step, curve_width)
                value = headline.format(self._latest[headline.metric])
                grid.add_row(headline.label, value, self._change(headline), Text(curve, style="cyan"))
        speed = self._latest.get(names.COMPLETIONS_PER_SECOND)
        grid.add_row("completions/s", _speed(speed) if speed else "…")
        return grid

    def _sample_lines(self, width: int, room: int) -> list[RenderableType]:
        """The samples, two lines each (three if the completion is long), as many as fit."""
        if not self._samples or room < 4:
            return []
        lines: list[RenderableType] = [Text(), Text(self._samples_heading(), style="dim")]
        for sample in self._samples:
            body = chop_cells(fit(sample["completion"], 2 * (width - 2) - 1), width - 2)
            if len(lines) + 1 + len(body) > room:
                break
            details = _details(sample)
            mark, style = _MARKS[sample["right"]]
            head = Table.grid(expand=True, padding=(0, 1, 0, 0))
            head.add_column(no_wrap=True)
            head.add_column(ratio=1, no_wrap=True)
            head.add_column(no_wrap=True, justify="right")
            prompt = fit(sample["prompt"], width - 5 - cell_len(details))
            head.add_row(Text(mark, style=style), Text(prompt, style="bold"), Text(details, style="dim"))
            lines += [head, *(Text("  " + line, no_wrap=True) for line in body)]
        return lines if len(lines) > 2 else []

    def _samples_heading(self) -> str:
        return "completions on held-out problems" if self.shows_held_out else "completions"

    def _print(self, text: str) -> None:
        encoding = self._console.encoding
        text = text.encode(encoding, "replace").decode(encoding)  # an unsupported character must not end the run
        self._console.print(Text(text), soft_wrap=True)

    def _log(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
        with (
            RunDirectory(self._log_path.parent).guard(self._log_path.name),
            self._log_path.open("ab", buffering=0) as file,  # unbuffered: a note may come from a signal handler
        ):
            file.write(line.encode(errors="replace"))


def before_after_table(rows: Sequence[Change]) -> Table:
    """The final table of a run: each figure before and after, and the change; below it the paired tests of the changes.

    A change is coloured where its test tells it from chance.
    """
    notes = ["in brackets: 95% interval"] if any("[" in text for row in rows for text in row.texts) else []
    notes += [f"grader: {grader}" for grader in dict.fromkeys(row.grader for row in rows) if grader]
    tests = [f"{row.label}: {row.test_text}" for row in rows if row.paired.found]
    caption = Text("\n".join([" · ".join(notes), *tests]).strip("\n"))  # not markup: sets have users' names
    table = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_column("")
    for heading in ("before", "after", "points" if all(row.is_share for row in rows) else "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        before, after = row.texts
        change = Text(row.values[2], style=_CHANGED[row.verdict])
        table.add_row(Text(row.label), Text(before), Text(after, style="bold"), change)
    return table


def print_summary(console: Console, table: Table | None, paths: Sequence[tuple[str, Path]]) -> None:
    """Print the final table, if any, and the paths of all results, one unbroken line each."""
    if table is not None:
        console.print(table)
    width = max((len(label) for label, _ in paths), default=0)
    for label, path in paths:
        console.print(Text.assemble((f"  {label:<{width}}  ", "dim"), str(path)), soft_wrap=True)


_CHANGED = {1: "green", 0: "", -1: "red"}
_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}


def _speed(per_second: float) -> str:
    return f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.1f}"


def _readable_sample(sample: Mapping[str, Any]) -> ShownCompletion:
    answer = sample.get("answer")
    return ShownCompletion(
        prompt=readable(sample["prompt"]),
        completion=readable(sample["completion"]),
        answer=None if answer is None else readable(answer),
        reward=sample.get("reward"),
        right=sample.get("right"),
    )


def _details(sample: ShownCompletion) -> str:
    parts = [] if sample["answer"] is None else [f"answer {fit(sample['answer'], 20)}"]
    if sample["reward"] is not None:
        parts.append(f"reward {sample['reward']:.2f}")
    return "  ".join(parts)


def _sample_line(sample: ShownCompletion) -> str:
    return f"{_MARKS[sample['right']][0]} {sample['prompt']}  {_details(sample)} | {sample['completion']}"
