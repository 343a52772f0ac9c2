"""What libraries log and warn of, sent to a file; Covey's own warnings are shown too."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from covey.config.secrets import RedactingFormatter, redact


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """Send logs and warnings of libraries to a file; the screen belongs to the display."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    handler = _Log(file, encoding="utf-8", errors="backslashreplace")
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


class _Log(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """A full disk ends the run with a paragraph of its own: no traceback for each line of the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextmanager
def showing_warnings(show: Callable[[str], None]) -> Iterator[None]:
    """Context manager: Covey's own warnings are shown to the user as well, by their first lines."""
    handler = _Shown(show)
    logger = logging.getLogger("covey")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Shown(logging.Handler):
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
