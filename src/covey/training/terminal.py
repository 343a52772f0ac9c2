"""Text for a terminal, what redraws a part of it or a notebook's output, and what libraries log, kept off it."""

from __future__ import annotations

import contextvars
import logging
import os
import re
import sys
import termios
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.jupyter import JupyterMixin
from rich.live import Live
from rich.text import Text

from covey.config.secrets import RedactingFormatter, redact


class TerminalLive(Live):
    """Redraws something in place. Keys are not echoed meanwhile: the ^C of a Ctrl-C, or a new line, would shift the
    cursor, and a redraw would leave the first line behind."""

    _before: list[Any] | None = None

    def start(self, refresh: bool = False) -> None:
        """As `Live.start`."""
        self._before = _terminal_settings(self.console.file)
        if self._before is not None:
            quiet = [*self._before]
            quiet[3] &= ~(termios.ECHO | termios.ECHONL)
            termios.tcsetattr(self.console.file, termios.TCSANOW, quiet)
        super().start(refresh)

    def stop(self) -> None:
        """As `Live.stop`."""
        try:
            super().stop()
        finally:
            if self._before is not None and _terminal_settings(self.console.file) is not None:
                termios.tcsetattr(self.console.file, termios.TCSANOW, self._before)
            self._before = None


def _terminal_settings(file: IO[str]) -> list[Any] | None:
    """The settings of the terminal; None if it is none, or another job has it, which must not change them."""
    try:
        descriptor = file.fileno()
        return termios.tcgetattr(descriptor) if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (termios.error, OSError, ValueError):
        return None


_REDRAW_EVERY = 1.0
"""Seconds between two drawings of the panel: each travels to the browser as a whole."""


def live(content: RenderableType, console: Console) -> TerminalLive | NotebookLive | None:
    """What redraws something on this console; None where nothing can: neither a notebook nor a terminal that supports
    cursor movements and the panel's characters."""
    if isinstance(console, NotebookConsole):
        return NotebookLive(content, console)
    if console.is_interactive and console.file.isatty() and console.encoding.lower().startswith("utf"):
        return TerminalLive(content, console=console, refresh_per_second=4)
    return None


class NotebookConsole(Console):
    """A console that prints into the cell, and has one output there that can be replaced, by `show`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(force_jupyter=True, **options)
        self._output: Any = None

    def show(self, content: RenderableType) -> None:
        """Replace what is shown in the output; it appears with the first call, where the cell's outputs then end."""
        from IPython.display import display

        if self._output is None:
            self._output = display(_AsOutput(content), display_id=True)
        else:
            self._output.update(_AsOutput(content))

    def status(self, status: RenderableType, **options: Any) -> Any:
        """Context manager: what is going on, until it ends; `update` changes the text."""
        return _Status(self, status)


class _AsOutput(JupyterMixin):
    """Anything that rich can print, as an object that a notebook shows."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._content


class _Status:
    def __init__(self, console: NotebookConsole, text: RenderableType) -> None:
        self._console = console
        self._text = text

    def __enter__(self) -> _Status:
        self.update(self._text)
        return self

    def __exit__(self, *exception: object) -> None:
        self.update("")

    def update(self, text: RenderableType) -> None:
        self._console.show(Text(text, style="dim") if isinstance(text, str) else text)


class NotebookLive:
    """Redraws something in the output of a cell while it runs: `rich.live.Live` for notebooks."""

    def __init__(self, content: RenderableType, console: NotebookConsole) -> None:
        self._content = content
        self._console = console
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Draw it, and go on doing so."""
        self._console.show(self._content)
        context = contextvars.copy_context()  # the kernel's, which says to which cell an output belongs
        self._thread = threading.Thread(target=context.run, args=(self._redraw,), name="covey-notebook", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Draw it a last time."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._console.show(self._content)

    def _redraw(self) -> None:
        while not self._ended.wait(_REDRAW_EVERY):
            self._console.show(self._content)


BLOCKS = "▁▂▃▄▅▆▇█"


def readable(text: str) -> str:
    """Text in one line that is safe to print: white space becomes single spaces, control characters are removed."""
    return "".join(char for char in " ".join(text.split()) if not unicodedata.category(char).startswith("C"))


def fit(text: str, width: int) -> str:
    """Truncate text to a screen width in its middle: a completion's answer is at its end."""
    if cell_len(text) <= width:
        return text
    tail_width = max(0, (width - 1) // 2)
    head, tail = text[:width], text[-tail_width:] if tail_width else ""
    while cell_len(tail) > tail_width:
        tail = tail[1:]
    return set_cell_size(head, max(0, width - 1 - cell_len(tail))) + "…" + tail


def sparkline(points: Sequence[tuple[int, float]], last_step: int, width: int) -> str:
    """A curve in block characters over the steps from the first point to `last_step`, at most one character a step.

    Each character is the mean of the values in its steps; without any, the previous one.
    """
    if not points or width < 1:
        return ""
    first = points[0][0]
    cells: list[list[float]] = [[] for _ in range(min(width, last_step - first + 1))]
    for step, value in points:
        cells[(step - first) * len(cells) // (last_step - first + 1)].append(value)
    heights: list[float] = []
    for cell in cells:
        heights.append(sum(cell) / len(cell) if cell else heights[-1])
    low, high = min(heights), max(heights)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((height - low) * scale)] for height in heights)


def duration(seconds: float) -> str:
    """`2:31`, or `1:02:31`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def encodable(text: str, encoding: str) -> str:
    """Text with `?` for what an output cannot show: an unsupported character must not end the run."""
    return text.encode(encoding, "replace").decode(encoding)


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """Send logs and warnings of libraries to a file; the screen belongs to the display."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    handler = _LogFile(file, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [
        logging.getLogger(name) for name in ("transformers", "trl", "accelerate", "vllm", "covey", "py.warnings")
    ]
    before = [(logger.handlers[:], logger.propagate) for logger in loggers]
    logging.captureWarnings(True)
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
        with suppress(OSError):  # of what a full disk did not take
            handler.close()


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """A full disk ends the run with a paragraph of its own: no traceback for each line of the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextmanager
def showing_warnings(show: Callable[[str], None]) -> Iterator[None]:
    """Context manager: Covey's own warnings are shown to the user as well, by their first lines."""
    handler = _WarningsShown(show)
    logger = logging.getLogger("covey")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _WarningsShown(logging.Handler):
    MOST = 3
    """Warnings of one kind that are shown: the same text but for what its placeholders hold."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show
        self._kinds: dict[object, set[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "shown", True):
            return
        text = redact(record.getMessage().partition("\n")[0])
        shown = self._kinds.setdefault(text if record.msg == "%s" else (record.name, record.msg), set())
        if len(shown) < self.MOST and (alike := re.sub(r"\d+", "0", text)) not in shown:
            shown.add(alike)
            self._show(text)
