"""What redraws the display in place: a terminal, or in a Jupyter notebook an output of the cell, without widgets."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.jupyter import JupyterMixin
from rich.text import Text

from covey.training.display.terminal_live import TerminalLive

_EVERY = 1.0
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
            self._output = display(_Shown(content), display_id=True)
        else:
            self._output.update(_Shown(content))

    def status(self, status: RenderableType, **options: Any) -> Any:
        """Context manager: what is going on, until it ends; `update` changes the text."""
        return _Status(self, status)


class _Shown(JupyterMixin):
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
        while not self._ended.wait(_EVERY):
            self._console.show(self._content)
