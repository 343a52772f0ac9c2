"""A vLLM server as a process of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

READY_SECONDS = 600


@dataclass
class Server:
    """A server process and its port."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def wait(self) -> None:
        """Wait until it responds."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.3)
        raise AssertionError(f"no answer within {READY_SECONDS} s: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Kill it and its children, as a failing machine does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


StartServer = Callable[..., Server]
"""Takes a model, further arguments of the server, and optionally a `port`."""
