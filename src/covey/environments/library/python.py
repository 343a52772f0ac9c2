"""Python as a tool: each call runs a program in a fresh process with limits."""

from __future__ import annotations

from typing import Any

from covey.sandbox import MEMORY_MB, SECONDS, Execution, run_python


def python(code: str) -> str:
    """Run a Python program in a fresh interpreter and return what it prints.

    Args:
        code: The program. Nothing is kept from call to call.

    Returns:
        The output, with the value of a last line that is an expression; errors as Python shows them.
    """
    return _shown(run_python(str(code)))


class Python:
    """Python as an environment: the same tool with other limits. It has no state and no reward."""

    def __init__(self, seconds: float = SECONDS, memory_mb: int = MEMORY_MB) -> None:
        """Set the limits of a call.

        Args:
            seconds: Time of a program; stay below `environment.timeout`, which ends the episode.
            memory_mb: Megabytes that it may use.

        Raises:
            ValueError: one is not above zero.
        """
        if not (seconds > 0 and memory_mb > 0):
            raise ValueError(f"seconds={seconds} and memory_mb={memory_mb} must be above zero")
        self._seconds, self._memory_mb = seconds, memory_mb

    def reset(self, **row: Any) -> None:
        """Nothing to begin: the prompt is the row's own."""

    def python(self, code: str) -> str:
        """Run a Python program in a fresh interpreter and return what it prints.

        Args:
            code: The program. Nothing is kept from call to call.

        Returns:
            The output, with the value of a last line that is an expression; errors as Python shows them.
        """
        return _shown(run_python(str(code), seconds=self._seconds, memory_mb=self._memory_mb))


def _shown(execution: Execution) -> str:
    output = execution.output.rstrip("\n")
    if execution.status in ("timed_out", "killed") or (execution.status == "failed" and not output):
        return f"{output}\nerror: {execution.detail}".strip()
    return output or "(no output)"
