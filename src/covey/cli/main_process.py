"""Commands started in several processes (torchrun, accelerate launch): only the main process reports."""

from __future__ import annotations

import os
import socket
import sys

REPORT_SECONDS = 10.0
"""Seconds in which the main process reports an error that all processes have; the launcher then ends the others."""


def is_main() -> bool:
    """Whether this is the only process, or rank 0."""
    return _rank() == 0


def skip_unless_main(command: str) -> bool:
    """Whether this process must skip a single-process command; the main process prints a note."""
    others = _number("WORLD_SIZE", 1) - 1
    if is_main() and others > 0:
        rest = "the other ends" if others == 1 else "the others end"
        print(f"· covey {command} works in one process: {rest} at once.", file=sys.stderr)
    return not is_main()


def process_label() -> str:
    """Prefix of a message that names this process; empty for the main one."""
    return "" if is_main() else f"process {_rank()} on {socket.gethostname()}: "


def _rank() -> int:
    """From the variable of torchrun and accelerate, not Slurm's, which a job's shell has too."""
    return _number("RANK", 0)


def _number(variable: str, otherwise: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() else otherwise
