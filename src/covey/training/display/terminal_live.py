"""Redrawing in a terminal, undisturbed by the keys that are pressed meanwhile."""

from __future__ import annotations

import os
import termios
from typing import IO, Any

from rich.live import Live


class TerminalLive(Live):
    """Redraws something in place. Keys are not echoed meanwhile: the ^C of a Ctrl-C, or a new line, would shift the
    cursor, and a redraw would leave the first line behind."""

    _before: list[Any] | None = None

    def start(self, refresh: bool = False) -> None:
        """As `Live.start`."""
        self._before = _settings(self.console.file)
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
            if self._before is not None and _settings(self.console.file) is not None:
                termios.tcsetattr(self.console.file, termios.TCSANOW, self._before)
            self._before = None


def _settings(file: IO[str]) -> list[Any] | None:
    """The settings of the terminal; None if it is none, or another job has it, which must not change them."""
    try:
        descriptor = file.fileno()
        return termios.tcgetattr(descriptor) if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (termios.error, OSError, ValueError):
        return None
