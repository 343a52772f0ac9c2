"""A reaper that cannot run: a script that exits at once takes its place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from covey.launch import process
from covey.launch.process import Reaper


def test_a_reaper_that_cannot_run_is_not_restarted_in_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = tmp_path / "starts"
    (tmp_path / "guard.py").write_text(f"print('one', file=open({str(starts)!r}, 'a'))\n", encoding="utf-8")
    monkeypatch.setattr(process, "GUARD", tmp_path / "guard.py")
    monkeypatch.setattr(process, "REAPER_MIN_SECONDS", 1000.0)  # leaving the block does not wait for it
    reaper = Reaper(1.0)
    with reaper:
        reaper._process.wait()
        time.sleep(0.5)  # a loop would start many
    assert starts.read_text(encoding="utf-8") == "one\n"
