"""What workers print, on its way to the log: a worker that floods it must not fill the disk."""

from __future__ import annotations

import os
import time

_BURST = 4 << 20  # bytes
_PER_SECOND = 64 << 10  # bytes, after that
_READ_SIZE = 1 << 16


class OutputPipe:
    """The pipe that all workers of a fork server print to, copied to its standard error by the fork server.

    Up to four megabytes are copied at once, and then 64 kilobytes per second; the rest is left out, and the log says
    how much.
    """

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._left = float(_BURST)
        self._refilled = time.monotonic()
        self._omitted = 0

    def take_over(self) -> None:
        """In a worker: print to the pipe from now on."""
        os.dup2(self._write_end, 1)
        os.dup2(self._write_end, 2)
        os.close(self._write_end)
        os.close(self.read_end)

    def copy(self) -> bool:
        """Copy what is there, at most 64 KiB; whether there was anything."""
        try:
            data = os.read(self.read_end, _READ_SIZE)
        except BlockingIOError:
            return False
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._refilled) * _PER_SECOND)
        self._refilled = now
        kept = data[: int(self._left)]
        if kept:
            self.note()
            _write(kept)
        self._left -= len(kept)
        self._omitted += len(data) - len(kept)
        return True

    def note(self) -> None:
        """Write how much was left out, if anything, since the last time."""
        if self._omitted:
            _write(f"\n[{self._omitted / 1e6:.1f} MB of output left out]\n".encode())
            self._omitted = 0


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(2, data) :]
