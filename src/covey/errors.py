"""The exception tree. Every message is one paragraph that says what is wrong, where, and what would be right.

The command line prints a `CoveyError` without a traceback and exits with `exit_code`; anything else is a bug and keeps
its traceback.
"""

from __future__ import annotations


class CoveyError(Exception):
    """A mistake the user can mend, or a condition outside of the program (a full disk, say)."""

    exit_code = 1
    told_here = False
    """Whether the processes of a run have settled that this one tells it (see `training/processes.py`)."""


class ConfigError(CoveyError):
    """A key, a value or a combination of values that cannot be run."""

    exit_code = 2


class DataError(CoveyError):
    """Data that cannot be found, read, or used as it is."""


class ModelError(CoveyError):
    """A model or tokenizer that cannot be found or loaded."""


class RewardError(CoveyError):
    """A reward function that cannot be found or does not keep to its contract."""


class RunDirectoryError(CoveyError):
    """A run directory that belongs to another run, is not whole, or cannot be written."""


class TrainingError(CoveyError):
    """A run that was ended because going on would be of no use."""


class EndedElsewhereError(CoveyError):
    """Another process of the run failed, and says why; this one says nothing."""

    def __init__(self, process: int, exit_code: int) -> None:
        super().__init__(f"Process {process} of this run failed, and its own message says why.")
        self.exit_code = exit_code


class EngineError(CoveyError):
    """A vLLM engine that cannot be started or reached, or that holds other weights than those that are trained."""


class HubError(CoveyError):
    """A hub that refuses what is pushed to it, or cannot be reached."""
