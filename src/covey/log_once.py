"""Messages that a run logs once, however often their cause occurs."""

from __future__ import annotations

import logging

_logged: set[tuple[str, str]] = set()


def log_once(
    logger: logging.Logger,
    text: str,
    *args: object,
    key: str | None = None,
    level: int = logging.WARNING,
    shown: bool = True,
) -> bool:
    """Log a message, unless this run has logged it.

    Args:
        logger: of the module.
        text: with placeholders for `args`, as `Logger.warning` takes it.
        key: what makes two messages of a logger the same; None for their text.
        level: of the message.
        shown: whether a run's display shows it too; False for what costs time, and changes no number.

    Returns:
        Whether it was logged now.
    """
    name = logger.name, key if key is not None else (text % args if args else text)
    if name in _logged:
        return False
    _logged.add(name)
    logger.log(level, text, *args, extra={"shown": shown})
    return True


def begin_run() -> None:
    """Forget what was logged: the next run in this process has a log of its own."""
    _logged.clear()
