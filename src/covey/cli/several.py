"""A command that runs in several processes (torchrun, accelerate launch) speaks with one voice: the main process's."""

from __future__ import annotations

import os
import socket
import sys
import time

_SPEAK_FIRST = 10.0
"""Seconds that the main process gets to say what every process finds wrong; the launcher then ends the others."""


def is_main() -> bool:
    """Whether this is the only process, or the first of several."""
    return _rank() == 0


def leave_to_main(command: str) -> bool:
    """Whether this process has nothing to do in a command that one process does alone; the main one says so."""
    others = _number("WORLD_SIZE", 1) - 1
    if is_main() and others > 0:
        rest = "the other ends" if others == 1 else "the others end"
        print(f"· covey {command} works in one process: {rest} at once.", file=sys.stderr)
    return not is_main()


def wait_for_main() -> None:
    """Before a process other than the main one says what is wrong: mostly the main one says the same."""
    if not is_main():
        time.sleep(_SPEAK_FIRST)


def which_process() -> str:
    """Which process of several this is, to begin a message with; nothing for the main one."""
    return "" if is_main() else f"process {_rank()} on {socket.gethostname()}: "


def _rank() -> int:
    """By the environment variable of torchrun and accelerate; Slurm's is not it, as a job's shell has it too."""
    return _number("RANK", 0)


def _number(variable: str, otherwise: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() else otherwise
