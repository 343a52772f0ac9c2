"""A process that is killed outright (SIGKILL) in the middle of writing a checkpoint loses that checkpoint only."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from covey.cli.main import main
from covey.runlog.directory import is_whole
from same_run import assert_same_run, words


def killed_while_saving(checkpoint: Path, where: str, arguments: list[str]) -> None:
    """Run `covey` until it has written a part of `checkpoint`, and kill it there."""
    sign = checkpoint.parent.parent / f"{checkpoint.name}-{where}"
    script = Path(__file__).with_name("hanging_process.py")
    command = [sys.executable, str(script), str(checkpoint), where, str(sign), *arguments]
    output = sign.with_suffix(".log")
    with output.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        while not sign.exists():
            assert process.poll() is None, output.read_text()[-3000:]
            time.sleep(0.05)
        process.kill()
    assert process.returncode == -9


@pytest.mark.slow
def test_killed_twice_while_saving_and_still_the_same_run(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """First half of the optimiser's file is there, then everything but the marker.

    Step 2 ends a generation batch, step 3 lies in the middle of one.
    """
    run = tmp_path / "killed"
    arguments = words(tiny_model, tmp_path, run.name)
    killed_while_saving(run / "checkpoint-2", "optimizer", arguments)
    assert (run / "checkpoint-2" / "optimizer.pt").stat().st_size > 0
    assert not is_whole(run / "checkpoint-2")
    killed_while_saving(run / "checkpoint-3", "marker", arguments)
    assert is_whole(run / "checkpoint-2")
    assert not is_whole(run / "checkpoint-3")
    capsys.readouterr()
    assert main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "checkpoint-3 is only half-written" in said
    assert "Going on from checkpoint-2" in said

    assert main(words(tiny_model, tmp_path, "straight")) == 0
    assert_same_run(run, tmp_path / "straight")
