"""How a run ended, in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.errors import RunDirectoryError
from covey.report.load import load_run
from covey.report.summary import how_it_ended
from covey.runlog import RunDirectory, names
from covey.runlog.checkpoint import mark_complete
from covey.runlog.metrics import MetricsWriter
from covey.runlog.notes import write_failure


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with metrics of its third step of eight."""
    run = RunDirectory(tmp_path)
    writer = MetricsWriter(run.metrics, None)
    writer.add(3, {names.REWARD: 0.5})
    writer.flush()
    run.config.write_text("training: {max_steps: 8}")
    return run


def test_where_a_run_goes_on_that_stopped_or_failed(run: RunDirectory) -> None:
    nowhere = "There is no checkpoint to resume from."
    assert how_it_ended(load_run(run.root)) == ("stopped", f"Stopped after step 3 of 8. {nowhere}")
    write_failure(run, ValueError("no disk."))
    assert how_it_ended(load_run(run.root)) == ("failed", f"Failed after step 3 of 8: ValueError: no disk. {nowhere}")
    run.checkpoint(2).mkdir()
    mark_complete(run.checkpoint(2), 2)
    resumes = f"The same command with run_name={run.root.name} resumes from checkpoint-2."
    with run.lock():  # as when the report of the failure is written
        assert how_it_ended(load_run(run.root))[1].endswith(resumes)
    run.summary.unlink()
    assert how_it_ended(load_run(run.root)) == ("stopped", f"Stopped after step 3 of 8. {resumes}")


def test_why_a_finished_run_ended(run: RunDirectory) -> None:
    run.summary.write_text(json.dumps({"status": "finished", "training_seconds": 75.0, "reason": "no new best"}))
    assert how_it_ended(load_run(run.root)) == ("finished", "Finished after 3 steps in 1 min 15 s: no new best.")


def test_a_run_that_failed_before_its_first_step_says_so(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.config.write_text("{}")
    with pytest.raises(RunDirectoryError, match="has not begun to train"):
        load_run(tmp_path)
    write_failure(run, ValueError("no disk"))
    with pytest.raises(RunDirectoryError, match="failed before its first metrics: ValueError: no disk"):
        load_run(tmp_path)
    run.metrics.write_text("")
    with pytest.raises(RunDirectoryError, match="failed before its first metrics"):
        load_run(tmp_path)
