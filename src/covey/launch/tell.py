"""What a launcher tells: on the standard error, and with the time in its log."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.live import Live

_EVERY_SECONDS = 15.0
"""How often a wait is told where there is no terminal to show it on."""


class Reporter(Protocol):
    """What a supervisor tells."""

    def say(self, text: str) -> None:
        """Something happened."""

    def waiting(self, text: str, lines: list[str]) -> None:
        """Something takes time; the last lines of its log. An empty text ends it."""


class Teller:
    """Writes to the standard error and to a log. A terminal that is gone costs nothing but the words."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("a", encoding="utf-8", buffering=1)
        self._live: Live | None = None
        self._told = time.monotonic()

    def __enter__(self) -> Teller:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.waiting("", [])
        if error is not None:
            self.note(f"{type(error).__name__}: {error}")
        self._log.close()

    def say(self, text: str) -> None:
        """Tell the user and the log."""
        self.note(text)
        self._print(f"· {text}\n")

    def note(self, text: str) -> None:
        """Tell the log alone."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._log.write(f"{stamp} {text.rstrip()}\n")

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def waiting(self, text: str, lines: list[str]) -> None:
        """Show what is waited for and the last lines of its log, in place on a terminal; an empty text ends it."""
        if sys.stderr.isatty():
            self._show(text, lines)
            return
        now = time.monotonic()
        if text and now - self._told > _EVERY_SECONDS:
            self._told = now
            self._print(f"· {text}{': ' + lines[-1] if lines else ''}\n")

    def _show(self, text: str, lines: list[str]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with contextlib.suppress(OSError):
            if text and self._live is None:
                self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=4)
                self._live.start()
            if self._live is None:
                return
            if text:
                self._live.update(Text("\n".join([f"· {text}", *(f"  {line[:200]}" for line in lines)])))
            else:
                self._live.stop()
                self._live = None
