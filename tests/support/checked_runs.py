"""Command lines of small runs for tests of the checks before a run, and what training and doctor say to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.cli.main import main
from run_sizes import SMALL


def words(folder: Path, *overrides: str) -> list[str]:
    return [
        *("model=starter", f"output_dir={folder / 'out'}", "run_name=run", *SMALL, "training.max_steps=1"),
        *(
            "dataset.train_size=16",
            "dataset.test_size=6",
            "dataset.hard_size=0",
            "evaluation.every_steps=0",
            *overrides,
        ),
    ]


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """Training's message, which is one of doctor's too, and the first of them."""
    capsys.readouterr()
    code = main(["train", *words(folder, *overrides)])
    error = capsys.readouterr().err
    assert code in (1, 2), error
    assert not (folder / "out").exists()
    lines = [line for line in error.splitlines() if "no effect in this run" not in line]  # the words are for other data
    assert lines[0].startswith("covey: ")
    assert len(lines) == 1
    assert main(["doctor", "--quiet", *words(folder, *overrides)]) == 1
    assert lines[0] in capsys.readouterr().err.splitlines()[:2]
    assert not (folder / "out").exists()
    return lines[0]
