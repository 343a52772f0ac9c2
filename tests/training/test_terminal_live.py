"""Keys that are pressed while the panel redraws do not disturb it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import fcntl, json, sys, termios
from pathlib import Path
from rich.console import Console
from covey.training.display import Display

def on(flag):
    return bool(termios.tcgetattr(1)[3] & flag)

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
found = {"before": on(termios.ECHO)}
try:
    with Display("t", 5, console=Console(), log_path=Path(sys.argv[1]) / "log") as display:
        found |= {"redraws": display.redraws, "echo": on(termios.ECHO), "signals": on(termios.ISIG)}
        if sys.argv[2] == "fails":
            raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
(Path(sys.argv[1]) / "found").write_text(json.dumps(found | {"after": on(termios.ECHO)}))
"""


@pytest.mark.parametrize("ends", ["well", "fails"])
def test_keys_are_not_echoed_over_the_panel(tmp_path: Path, ends: str) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), ends]
    ends_of = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    child = subprocess.Popen(command, **ends_of, env={**os.environ, "TERM": "xterm"}, start_new_session=True)
    os.close(theirs)
    output = b""
    try:
        while read := os.read(ours, 4096):
            output += read
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert child.wait() == 0, output.decode(errors="replace")
    found = json.loads((tmp_path / "found").read_text())
    assert found == {"before": True, "redraws": True, "echo": False, "signals": True, "after": True}
