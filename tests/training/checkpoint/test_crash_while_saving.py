"""A process that is killed while writing a checkpoint loses that checkpoint only."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.cli.main import main
from covey.runlog.checkpoint import is_complete
from forked import run
from same_run import assert_same_run, words


def killed_while_saving(checkpoint: Path, where: str, arguments: list[str]) -> None:
    """Run `covey` until `checkpoint` is partly written, and kill it there."""
    sign = checkpoint.parent.parent / f"{checkpoint.name}-{where}"
    log = sign.with_suffix(".log")
    words = ["hanging_process.py", checkpoint, where, sign, *arguments]
    assert run(words, log, lambda seconds: sign.exists()) == -9, log.read_text()[-3000:]


@pytest.mark.slow
def test_killed_twice_while_saving_and_still_the_same_run(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """First with half of the optimiser's file, then with all but the marker.

    Step 2 ends a generation batch, step 3 lies in the middle of one.
    """
    run = tmp_path / "killed"
    arguments = words(tiny_model, tmp_path, run.name)
    killed_while_saving(run / "checkpoint-2", "optimizer", arguments)
    assert (run / "checkpoint-2" / "optimizer.pt").stat().st_size > 0
    assert not is_complete(run / "checkpoint-2")
    killed_while_saving(run / "checkpoint-3", "marker", arguments)
    assert is_complete(run / "checkpoint-2")
    assert not is_complete(run / "checkpoint-3")
    capsys.readouterr()
    assert main(arguments) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "checkpoint-3 is incomplete" in output
    assert "Resuming from checkpoint-2" in output

    assert main(words(tiny_model, tmp_path, "straight")) == 0
    assert_same_run(run, tmp_path / "straight")
