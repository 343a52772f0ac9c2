"""Whatever becomes of the screen, a command does its work, and says nothing of Python's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from completed import completed

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
SHELL = f"{sys.executable} -m covey"


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return completed(
        ["bash", "-c", f"set -o pipefail; {line}"], env={**ENVIRONMENT, **environment}, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("config | true", 0),
        ("config <&- >&- 2>&-", 0),
        ("trian 2>&-", 2),
    ],
)
def test_a_reader_that_is_gone_does_not_matter(line: str, code: int, tmp_path: Path) -> None:
    ended = shell(f"cd {tmp_path}; {SHELL} {line}")
    assert (ended.returncode, ended.stderr) == (code, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's device that is always full")
def test_output_that_a_full_disk_loses_is_an_error() -> None:
    ended = shell(f"{SHELL} config > /dev/full")
    assert ended.returncode == 1
    assert ended.stderr.startswith("covey: Part of the output could not be written: No space left on device.")


@pytest.mark.parametrize("words", ["config run_name=räuber", "trian→"])
def test_characters_that_the_terminal_lacks_are_escaped(words: str, tmp_path: Path) -> None:
    ended = shell(f"cd {tmp_path}; {SHELL} {words} 2>&1", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert "Traceback" not in ended.stdout
    assert "\\xe4" in ended.stdout or "\\u2192" in ended.stdout
    assert ended.stdout.isascii()


PRINTING = """
import logging, os, subprocess, sys
from covey.cli.streams import protect_streams
logging.getLogger("covey").addHandler(logging.FileHandler(sys.argv[1]))
protect_streams()
protect_streams()
from rich.console import Console
from rich.progress import track
for _ in track(range(50), console=Console(force_terminal=True)):
    print("x" * 1_000, flush=True)
    sys.stderr.write("y" * 1_000 + "\\n")
    sys.stdout.buffer.write(b"z" * 10_000)
logging.getLogger("other").warning("not a traceback")
subprocess.run([sys.executable, "-c", "print('x' * 100_000, flush=True)"], check=True)
open(sys.argv[2], "w").write("done")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_everything_that_prints_goes_on(unbuffered: str, tmp_path: Path) -> None:
    """Also rich, which ends the process on a broken pipe, and processes that are started later."""
    log, done = tmp_path / "log", tmp_path / "done"
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", PRINTING, str(log), str(done)]
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(command, env=environment, stdout=writing, stderr=writing, check=False)
    os.close(writing)
    assert (ended.returncode, done.read_text()) == (0, "done")
    assert log.read_text().count("The reader of this output is gone") == 2


def test_a_closed_terminal_is_a_reader_that_is_gone(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    os.close(master)
    log, done = tmp_path / "log", tmp_path / "done"
    command = [sys.executable, "-c", PRINTING, str(log), str(done)]
    ended = subprocess.run(command, env=ENVIRONMENT, stdout=terminal, stderr=terminal, check=False)
    os.close(terminal)
    assert (ended.returncode, done.read_text()) == (0, "done")
