"""Log rotation with several writers, and file size limits as distinct from a full disk."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.errors import RunDirectoryError
from covey.runlog.directory import RunDirectory
from covey.runlog.files import bounded, guard_disk, older, rotate
from limited_files import call_limited


def test_a_log_is_rotated_at_a_line_break(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"line {n:04d}\n" for n in range(100)))  # 10 bytes each
    rotate(log, 1000)
    assert log.stat().st_size == 1000  # not above the limit
    with log.open("a") as writer:
        writer.write("line 0100\n")
        writer.flush()
        rotate(log, 1000)
        writer.write("after\n")  # by a process that has it open
    assert log.read_text() == "after\n"
    assert older(log) == tmp_path / "train.log.1"
    kept = older(log).read_text().splitlines()
    assert (kept[0], kept[-1]) == ("line 0002", "line 0100")
    log.write_text("x" * 5000)
    rotate(log, 1000)
    assert (log.stat().st_size, older(log).stat().st_size) == (0, 0)  # one line, which would be incomplete
    log.unlink()
    rotate(log, 1000)  # a deleted log is not an error


def test_endless_output_does_not_fill_the_disk(tmp_path: Path) -> None:
    """Another process writes 40 MB, as a reward worker would; a logger writes to the same file."""
    log, most = tmp_path / "train.log", 200_000
    handler = logging.FileHandler(log)
    logger = logging.getLogger("covey.test_log_size")
    logger.addHandler(handler)
    code = "import os, sys\nfor _ in range(4000): os.write(1, b'p' * 9_999 + b'\\n')"
    with bounded(log, most), log.open("ab") as output:
        subprocess.run([sys.executable, "-c", code], stdout=output, check=True, timeout=60)
        logger.warning("the last word")
    logger.removeHandler(handler)
    handler.close()
    assert log.stat().st_size <= most
    assert older(log).stat().st_size <= most
    assert "the last word" in log.read_text() + older(log).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.log", "train.log.1"]


def test_rotation_frees_space_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("covey.runlog.files.write_atomically", full)
    log = tmp_path / "train.log"
    log.write_bytes(b"x\n" * 1000)
    rotate(log, 1000)
    assert log.stat().st_size == 0


def test_a_new_run_deletes_rotated_logs(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for log in (run.log, run.process_log(1)):
        log.write_text("new")
        older(log).write_text("old")
    (tmp_path / "mine.log.1").write_text("mine")
    run.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.log.1"]


LIMIT = 100_000
"""The file size limit (`ulimit -f`), of a child process."""


def what_is_said(folder: Path) -> dict[str, str]:
    """The errors of writes that are too large, and of one on a disk that is full besides."""
    import torch
    from safetensors.torch import save_file

    def said(write: Callable[[Path], object]) -> str:
        with pytest.raises(RunDirectoryError) as caught, guard_disk("it", folder):
            write(folder / "file")
        return str(caught.value)

    large = torch.zeros(100_000)
    found = {
        "torch": said(lambda path: torch.save(large, path)),
        "safetensors": said(lambda path: save_file({"a": large}, path)),
        "python": said(lambda path: path.write_bytes(bytes(400_000))),
    }
    shutil.disk_usage = lambda path: SimpleNamespace(free=LIMIT - 1)
    return {**found, "full": said(lambda path: torch.save(large, path))}


def test_a_file_size_limit_is_not_a_full_disk_unless_the_disk_is_full_besides(tmp_path: Path) -> None:
    said = call_limited(LIMIT, what_is_said, tmp_path)
    assert "the disk is full (100.0 kB free)" in said.pop("full")
    for how, text in said.items():
        assert re.search(r"Could not write it in .*larger than is allowed \(`ulimit -f`", text), how
        assert "full" not in text, how
