"""What libraries log and warn of, sent to a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from covey.config.secrets import RedactingFormatter


@contextmanager
def logging_to(file: Path) -> Iterator[None]:
    """Send logs and warnings of libraries to a file; the screen belongs to the display."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    handler = logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
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
        handler.close()
