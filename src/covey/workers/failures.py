"""Exceptions of the user's code, in words."""

from __future__ import annotations

import traceback
from pathlib import Path

from covey.workers.plain_data import writable


def text_of(error: BaseException) -> str:
    """The text of an exception, which may itself fail to make one."""
    try:
        return writable(str(error))
    except BaseException as problem:
        return f"(its text cannot be made: {type(problem).__name__})"


def describe(error: BaseException, memory_key: str) -> str:
    """An exception in one line: type, message, and the file and line where it was raised.

    Args:
        error: the exception.
        memory_key: the config key that limits the memory.
    """
    if isinstance(error, MemoryError):
        return f"MemoryError: it needed more memory than a worker may use ({memory_key})"
    text = " ".join(text_of(error).split())
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    return f"{type(error).__name__}{': ' + text[:300] if text else ''}{where}"


def trace_of(error: BaseException) -> str:
    """The traceback of an exception from the user's code on, its innermost calls if it is long."""
    own = error.__traceback__ and error.__traceback__.tb_next
    lines = traceback.format_exception(type(error), error, own, limit=-_FRAMES)
    return writable("".join(lines))[-_LETTERS:]


_FRAMES, _LETTERS = 12, 4000
