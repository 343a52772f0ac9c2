"""The study in studies/reasoning_vocabulary: its tables, from hand-made runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from covey.config import load
from covey.runlog import RunDirectory

FOLDER = Path(__file__).resolve().parents[2] / "studies" / "reasoning_vocabulary"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    sys.modules.pop("study", None)
    import study

    monkeypatch.setattr(study, "HERE", tmp_path)
    yield study
    sys.modules.pop("study", None)


def test_the_arms_differ_in_the_vocabulary_alone(study: ModuleType) -> None:
    configs = {arm: load(values, FOLDER / "study.yaml") for arm, values in study.ARMS.items()}
    assert configs["baseline"].model.reasoning_vocab_size == 0
    assert {arm: one.model.reasoning_start for arm, one in configs.items()} == {
        "baseline": "copy",
        "copy": "copy",
        "same_text": "same_text",
    }
    assert configs["copy"].training == configs["baseline"].training == configs["same_text"].training


def test_the_tables_and_the_plot(study: ModuleType, tmp_path: Path) -> None:
    runs = {}
    for arm, gain in (("baseline", 0.0), ("copy", 0.1), ("same_text", -0.1)):
        for seed, base in enumerate((0.5, 0.6)):
            run = runs[arm, seed] = RunDirectory(tmp_path / f"{arm}-{seed}")
            run.root.mkdir()
            share = {} if arm == "baseline" else {"train/vocabulary/reasoning_share": 0.5}
            rows = [
                {"step": 0, "eval/accuracy": 0.3},
                {"step": 1, "train/kl": 0.0, **share},
                {"step": 2, "eval/accuracy": base + gain + 0.02 * seed * (arm == "copy"), "train/kl": 0.1, **share},
            ]
            run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    study.write(runs)
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert lines[1].startswith("baseline,0,0.3,0.5,,")
    page = (tmp_path / "results.md").read_text()
    # differences 0.10 and 0.12: mean 0.11, half width 12.706 · 0.01
    assert "| copy | 0.110 [-0.017, 0.237] |" in page
    assert "| same_text | -0.100 [-0.100, -0.100] |" in page
    assert (tmp_path / "curves.png").stat().st_size > 5000
