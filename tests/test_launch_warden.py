"""The warden by itself, where it cannot live: a script in its place ends as soon as it begins."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from covey.launch import process
from covey.launch.process import Warden


def test_one_that_cannot_live_is_not_started_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = tmp_path / "starts"
    (tmp_path / "guard.py").write_text(f"print('one', file=open({str(starts)!r}, 'a'))\n", encoding="utf-8")
    monkeypatch.setattr(process, "GUARD", tmp_path / "guard.py")
    monkeypatch.setattr(process, "WARDEN_LIVES", 1000.0)  # leaving does not wait for it
    warden = Warden(1.0)
    with warden:
        warden._process.wait()
        time.sleep(0.5)  # in which many would begin
    assert starts.read_text(encoding="utf-8") == "one\n"
