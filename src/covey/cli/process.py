"""A training process of `covey launch`: `covey train`, supervised by its launcher.

It records its exit code, since accelerate's launcher merges all exit codes into one; it dumps the stacks of its threads
on SIGUSR2; and it survives the loss of its terminal, so that it can write a checkpoint.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from covey.cli.streams import protect_streams
from covey.launch.machine import FINISH_FILE, STACKS_FILE
from covey.runlog.files import write_atomically


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `covey`; returns its exit code."""
    return supervised(lambda: int(import_module("covey.cli.main").main(argv)))


def supervised(command: Callable[[], int]) -> int:
    """Run a command supervised by a launcher; returns its exit code.

    The environment variables `FINISH_FILE` and `STACKS_FILE` name the files that it writes for the launcher.
    """
    rank = os.environ.get("RANK", "0")
    protect_streams()
    if path := os.environ.get(STACKS_FILE):
        stacks = Path(path.format(rank=rank)).open("a", encoding="utf-8")  # noqa: SIM115 (open as long as the process)
        faulthandler.register(signal.SIGUSR2, stacks)
    code, orderly = 1, False
    try:
        code = command()
        orderly = True
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        if path := os.environ.get(FINISH_FILE):
            write_atomically(Path(path.format(rank=rank)), json.dumps({"code": code, "orderly": orderly}) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
