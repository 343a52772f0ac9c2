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
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.text import Text

from covey.runlog import RunDirectory, names
from covey.training.display.panel import Figure, PanelContent, ShownCompletion, draw, readable_sample, sample_line
from covey.training.display.redrawing import live
from covey.training.display.terminal_text import duration, encodable, fit, readable

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
        if names.REWARD in metrics or step == self._start_step:
            self._print_pending()

    def _print_pending(self) -> None:
        step, metrics = self._pending
        evaluated = any(map(names.evaluated_set, metrics))
        due = self._max_steps <= DETAILED_STEPS or step % LINE_EVERY == 0 or step >= self._max_steps
        if metrics and (evaluated or due):
            self._print(self._line(step, metrics))
            if evaluated and self._samples:
                self._print("  " + fit(sample_line(self._samples[0]), 110))
        self._pending = (step, {})

    def completions(self, samples: Sequence[Mapping[str, Any]]) -> None:
        """Show these completions, each as a `ShownCompletion`."""
        with self._lock:
            self._samples = [readable_sample(sample) for sample in samples]
        for sample in self._samples:
            self._log("  " + fit(sample_line(sample), 2000))

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
        content = PanelContent(
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
        panel, lines = draw(content, width, height, least=before)
        self._drawn = width, lines
        return panel

    def _figures(self) -> list[Figure]:
        shown = [one for one in self._headlines() if one.metric in self._latest]
        found = [
            Figure(one.label, one.format(self._latest[one.metric]), self._change(one), self._history[one.metric])
            for one in shown
        ]
        speed = self._latest.get(names.COMPLETIONS_PER_SECOND)
        return [*found, Figure("completions/s", _speed(speed) if speed else "…")]

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
