"""A launcher with a fake server and trainer (`launch_processes.py`) as a process, and all that it has started."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from covey.launch.machine import free_port

MARK = "COVEY_TEST_MARK"
TIMEOUT = 20.0


class Launched:
    """A launcher with a fake server and trainer, and all its descendants."""

    def __init__(self, root: Path, folder: Path, *, in_terminal: bool = False, **options: Any) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.run, self.logs = folder / "run", folder / "logs"
        self.run.mkdir(parents=True, exist_ok=True)
        self.port = options.pop("port", 0) or free_port(random.randrange(20_000, 40_000))
        (self.run / "port").write_text(str(self.port))
        self.output = folder / f"output-{self.mark}.txt"
        command = [sys.executable, str(Path(__file__).with_name("launch_processes.py")), "launcher", str(folder)]
        environment = {**os.environ, MARK: self.mark, "PYTHONPATH": str(root / "src")}
        self.terminal, output = pty.openpty() if in_terminal else (-1, os.open(self.output, os.O_CREAT | os.O_WRONLY))
        self.process = subprocess.Popen(
            [*command, json.dumps({"port": self.port, **options})],
            env=environment,
            stdin=output if in_terminal else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if in_terminal else None,
        )
        os.close(output)

    def processes(self) -> dict[int, str]:
        """All processes with this test's mark, the launcher included: pid and command line."""
        found = {}
        for one in psutil.process_iter():
            try:
                if one.environ().get(MARK) == self.mark and one.status() != psutil.STATUS_ZOMBIE:
                    found[one.pid] = " ".join(one.cmdline())
            except psutil.Error:
                continue
        return found

    def find(self, role: str, *, guard: bool = False) -> int:
        """The pid of the server, of the trainer, or of its guard."""
        processes = self.processes()
        for pid, line in processes.items():
            if f"launch_processes.py {role} " in line and ("guard.py" in line) == guard:
                return pid
        raise LookupError(f"no {role} in {processes}: {self.text}")

    def wait(self, seconds: float = TIMEOUT) -> int:
        return self.process.wait(seconds)

    def steps(self) -> list[int]:
        path = self.run / "metrics.jsonl"
        return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []

    def starts(self) -> list[list[str]]:
        """The overrides of every start of training."""
        path = self.run / "starts.jsonl"
        return [json.loads(line)["words"] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def text(self) -> str:
        return self.output.read_text()


def until(holds: Callable[[], Any], seconds: float = TIMEOUT) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
