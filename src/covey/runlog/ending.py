"""How a run ended, as `summary.json` says it: finished, or failed with an error."""

from __future__ import annotations

import json
import traceback

from covey.config.secrets import redact
from covey.errors import CoveyError, one_line
from covey.runlog.directory import RunDirectory
from covey.runlog.files import read_json, writable, write_atomically

FINISHED, FAILED = "finished", "failed"
"""The values of `status` in `summary.json`. A run without the file is running, was stopped, or was killed."""


def has_failed(run: RunDirectory) -> bool:
    """Whether the last invocation of a run ended with an error.

    Older versions wrote the file of finished runs only, without a status; so does one count that cannot be read.
    """
    try:
        return bool(read_json(run.summary)["status"] == FAILED)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def write_failure(run: RunDirectory, error: BaseException) -> None:
    """Write `summary.json` of a run that ended with an error; the next invocation removes it."""
    failure = {
        "status": FAILED,
        "error": type(error).__name__,
        "message": redact(failure_text(error)),
        "traceback": redact("".join(traceback.format_exception(error))),
    }
    write_atomically(run.summary, writable(json.dumps(failure, indent=2, ensure_ascii=False)) + "\n")


def failure_text(error: BaseException) -> str:
    """What an error says: a `CoveyError` is a paragraph of its own, any other has its type before it."""
    return str(error) if isinstance(error, CoveyError) else f"{type(error).__name__}: {one_line(error)}"
