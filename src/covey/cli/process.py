"""A training process of `covey launch`: `covey train`, with what its launcher needs to watch it.

It writes down how it ended, since launchers in between (accelerate's) make one exit code of all; it writes the stacks
of its threads when it gets SIGUSR2; and it goes on, to a checkpoint, when the terminal that it prints to is gone.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from covey.launch.progress import FINISH_FILE, STACKS_FILE
from covey.runlog.files import write_atomically

_GONE = (errno.EIO, errno.EPIPE)


class Lasting:
    """An output stream that takes what is written to it also when nobody reads it any more."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._gone():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._gone():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _gone(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _GONE:
                raise


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `covey`; returns its exit code."""

    def command() -> int:
        from covey.cli.main import main as covey

        return covey(argv)

    return watched(command)


def watched(command: Callable[[], int]) -> int:
    """Run a command as a launcher wants it; returns its exit code.

    The environment variables `FINISH_FILE` and `STACKS_FILE` say where it writes what it tells the launcher.
    """
    rank = os.environ.get("RANK", "0")
    sys.stdout, sys.stderr = Lasting(sys.stdout), Lasting(sys.stderr)
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
