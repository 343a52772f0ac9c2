"""The same command, twice, is the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from same_run import assert_same_run, words


@pytest.mark.slow
def test_the_same_command_twice_is_the_same_run(tiny_model: str, tmp_path: Path) -> None:
    """In fresh processes, with different hashes of strings."""
    for name, hashes in (("one", "1"), ("two", "2")):
        done = subprocess.run(
            [sys.executable, "-m", "covey.cli.main", *words(tiny_model, tmp_path, name)],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert_same_run(tmp_path / "one", tmp_path / "two")
