"""The launcher's messages: on standard error, and with timestamps in its log."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from covey.config.secrets import redact

if TYPE_CHECKING:
    from rich.live import Live

_EVERY_SECONDS = 15.0
"""Interval of messages about a wait where standard error is not a terminal."""


class Reporter(Protocol):
    """Receives a supervisor's messages."""

    def say(self, text: str) -> None:
        """Report an event."""

    def waiting(self, text: str, lines: list[str]) -> None:
        """Show what is being waited for, with the last lines of its log. An empty text ends the display."""


class LaunchConsole:
    """Writes to standard error, which bears a closed terminal in every command, and to a log."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("a", encoding="utf-8", buffering=1)
        self._live: Live | None = None
        self._last_print = time.monotonic()

    def __enter__(self) -> LaunchConsole:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.waiting("", [])
        if error is not None:
            self.note(f"{type(error).__name__}: {error}")
        self._log.close()

    def say(self, text: str) -> None:
        """Print a message and log it."""
        self.note(text)
        self._print(f"· {text}\n")

    def note(self, text: str) -> None:
        """Log a message without printing it."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._log.write(f"{stamp} {redact(text.rstrip())}\n")

    def _print(self, text: str) -> None:
        sys.stderr.write(redact(text))
        sys.stderr.flush()

    def waiting(self, text: str, lines: list[str]) -> None:
        """Show what is being waited for and the last lines of its log; on a terminal, updated in place."""
        if sys.stderr.isatty():
            self._show(text, lines)
            return
        now = time.monotonic()
        if text and now - self._last_print > _EVERY_SECONDS:
            self._last_print = now
            self._print(f"· {text}{': ' + lines[-1] if lines else ''}\n")

    def _show(self, text: str, lines: list[str]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

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
