"""The exception tree. Every message is one paragraph: what is wrong, where, and what would be right.

The command line prints a `CoveyError` without a traceback and exits with `exit_code`; anything else is a bug and keeps
its traceback. The rule for exit codes is in docs/configuration.md.
"""

from __future__ import annotations

import re

_NOT_FOR_TERMINALS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(error: BaseException | str, limit: int = 600) -> str:
    """A text, or that of another library's error, on one line, truncated; its type when the text is empty."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """Text in which what a terminal would obey is escaped: control characters, and changes of the direction."""
    return _NOT_FOR_TERMINALS.sub(lambda found: repr(found[0])[1:-1], text)


class CoveyError(Exception):
    """A mistake that the user can fix, or a condition outside of the program, such as a full disk."""

    exit_code = 1
    reported_here = False
    """Whether the processes of a run have agreed that this one reports it (see `training/processes.py`)."""

    def __init__(self, message: str = "") -> None:
        """Set the message, with control characters in it escaped, as `\\x1b`."""
        super().__init__(printable(message))


class ConfigError(CoveyError):
    """A key, a value or a combination of values that cannot be run."""

    exit_code = 2


class DataError(CoveyError):
    """Data that cannot be found, read, or used as it is."""


class ModelError(CoveyError):
    """A model or tokenizer that cannot be found or loaded."""


class EnvironmentSetupError(ConfigError):
    """An environment or tool that cannot be found, made or reached, or violates its contract."""


class RewardError(CoveyError):
    """A reward function that cannot be found or violates its contract."""


class PreflightError(CoveyError):
    """A run that `covey doctor` marks as wrong, without `ignore_checks`."""


class RunDirectoryError(CoveyError):
    """A run directory that belongs to another run, is incomplete, or cannot be written."""


class TrainingError(CoveyError):
    """A run stopped because continuing would be useless."""


class EndedElsewhereError(CoveyError):
    """Another process of the run failed and reports why; this one reports nothing."""

    def __init__(self, process: int, exit_code: int) -> None:
        super().__init__(f"Process {process} of this run failed, and its own message says why.")
        self.exit_code = exit_code


class EngineError(CoveyError):
    """An inference engine that cannot be reached, breaks its protocol, or holds other weights than the trained."""


class HubError(CoveyError):
    """A hub that rejects a push, or cannot be reached."""
