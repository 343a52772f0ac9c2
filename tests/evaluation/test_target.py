"""Names of models, runs and checkpoints that lead nowhere, and what the message offers instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.errors import RunDirectoryError
from covey.evaluation.stored import find_target


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unfinished run without a checkpoint, `out/first`."""
    monkeypatch.chdir(tmp_path)
    folder = Path("out/first")
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out/first/checkpoint-50", r"out/first has no whole checkpoint 50; .* one that is there \(none\)"),
        ("out/first/final_model", "out/first has no final_model: the run has not finished"),
        ("out/frist", r"There is no run out/frist. Did you mean out/first\?"),
        ("out/frist/checkpoint-50", r"There is no run out/frist. Did you mean out/first\?"),
    ],
)
def test_what_is_not_there(run: Path, name: str, message: str) -> None:
    with pytest.raises(RunDirectoryError, match=message):
        find_target(name)


def test_a_name_on_the_hub_is_none_of_these(run: Path) -> None:
    assert find_target("org/checkpoint-50").source == "org/checkpoint-50"
