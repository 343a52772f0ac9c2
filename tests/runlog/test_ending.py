"""What `summary.json` says of how a run ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.errors import RewardError
from covey.runlog.directory import RunDirectory
from covey.runlog.notes import has_failed, write_failure


@pytest.mark.parametrize(
    ("content", "failed"),
    [
        ('{"status": "failed"}', True),
        ('{"status": "finished"}', False),
        ("{}", False),  # older versions
        ('{"stat', False),
        ("[]", False),
        ("null", False),
        (b"\xff", False),
    ],
)
def test_only_its_status_says_that_a_run_failed(tmp_path: Path, content: str | bytes, failed: bool) -> None:
    run = RunDirectory(tmp_path)
    assert not has_failed(run)
    run.summary.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert has_failed(run) is failed


def _raise(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


def test_a_failure_is_written_with_its_traceback_and_without_secrets(tmp_path: Path) -> None:
    run, secret = RunDirectory(tmp_path), "hf_" + "aB3" * 11
    write_failure(run, _raise(ValueError(f"no\n  \ud800 place {secret}")))
    found = json.loads(run.summary.read_text(encoding="utf-8"))
    assert (found["status"], found["error"]) == ("failed", "ValueError")
    assert found["message"] == "ValueError: no ? place ***"
    assert found["traceback"].startswith("Traceback (most recent call last)")
    assert "test_ending.py" in found["traceback"]
    assert secret not in run.summary.read_text(encoding="utf-8")

    error = RewardError("The reward r failed.")
    error.add_note("in the user's own code")
    write_failure(run, _raise(error))
    found = json.loads(run.summary.read_text())
    assert found["message"] == "The reward r failed."
    assert "in the user's own code" in found["traceback"]
