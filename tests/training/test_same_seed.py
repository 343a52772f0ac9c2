"""The same command, twice, is the same run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from completed import completed
from covey.cli.main import main
from same_run import assert_same_run, words


@pytest.mark.slow
@pytest.mark.long
def test_the_same_command_twice_is_the_same_run(tiny_model: str, tmp_path: Path) -> None:
    """In a new process, and in this one, which has run other things; with different string hashes."""
    done = completed(
        [sys.executable, "-m", "covey.cli.main", *words(tiny_model, tmp_path, "one")],
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert main(words(tiny_model, tmp_path, "two")) == 0
    assert_same_run(tmp_path / "one", tmp_path / "two")
