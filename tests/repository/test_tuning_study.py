"""The study in studies/tuning: its settings, its tables by hand, and that those committed belong together."""

from __future__ import annotations

import importlib
import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.config import load
from covey.runlog import RunDirectory

FOLDER = Path(__file__).resolve().parents[2] / "studies" / "tuning"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The scripts, which find each other as neighbours in their folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return SimpleNamespace(sweep=importlib.import_module("sweep"), tables=importlib.import_module("tuning_tables"))


def test_each_setting_changes_one_thing(study: SimpleNamespace) -> None:
    configs = {arm: load(words, FOLDER / "study.yaml") for arm, words in study.sweep.ARMS.items()}
    default = configs.pop("default")
    assert (default.training.max_steps, default.dataset.test_size) == (50, 2048)
    for arm, config in configs.items():
        changed = {
            key
            for key in {**default.training.values, **config.training.values}
            if getattr(default.training, key) != getattr(config.training, key)
        }
        name, _, value = arm.partition("=")
        if name == "completions":
            per_step = config.training.per_device_train_batch_size * config.training.gradient_accumulation_steps
            assert (changed, per_step) == ({"gradient_accumulation_steps"}, int(value))
        else:
            assert changed == {name}
            assert str(getattr(config.training, name)) == str(type(getattr(config.training, name))(value))
        others = [item.name for item in fields(config) if item.name != "training"]
        assert all(getattr(config, group) == getattr(default, group) for group in others)
        assert config.evaluation.max_completion_length == default.evaluation.max_completion_length == 96


def test_the_figures_of_a_run(study: SimpleNamespace, tmp_path: Path) -> None:
    """Accuracy before and after; means of the last ten of twelve steps, truncation of the first ten."""
    run = RunDirectory(tmp_path)
    rows = [{"step": 0, "eval/accuracy": 0.25}]
    for step in range(1, 13):
        share = 0.5 if step > 2 else 9.0
        rows.append({"step": step, "train/entropy": share})
        rows[-1] |= {"train/reward": 2 * share, "train/completions/clipped_ratio": 0.2 if step > 5 else 0.0}
    rows.append({"step": 12, "eval/accuracy": 0.75})
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.summary.write_text(json.dumps({"training_seconds": 60.0}))
    found = study.sweep.result("beta=0", 3, run)
    assert found == study.tables.Result("beta=0", 3, 0.25, 0.75, 1.0, 0.5, None, pytest.approx(0.1), 60.0)


def test_the_table_by_hand(study: SimpleNamespace, tmp_path: Path) -> None:
    one = study.tables.Result("default", 0, 0.3, 0.5, 0.9, 0.1, 0.02, 0.0, 60.0)
    written = [
        *(replace(one, seed=seed, accuracy=accuracy) for seed, accuracy in enumerate((0.50, 0.60, 0.70))),
        *(replace(one, arm="beta=0", seed=s, accuracy=a, kl=None) for s, a in enumerate((0.51, 0.62, 0.73))),
    ]
    study.tables.write_csv(written, tmp_path / "results.csv")
    results = study.tables.read_csv(tmp_path / "results.csv")
    assert results == written
    # t(2) = 4.3027: 60 ± 4.3027 · 10 / √3, and for the differences 2 ± 4.3027 · 1 / √3
    lines = study.tables.page(results).splitlines()
    assert "| default | 3 | 60.0 [35.2, 84.8] |  | 0.90 | 0.100 | 0.020 | 0% |" in lines
    assert "| `beta=0` | 3 | 62.0 [34.7, 89.3] | +2.0 [-0.5, +4.5] | 0.90 | 0.100 |  | 0% |" in lines
    study.tables.draw(results, tmp_path / "differences.png")
    assert (tmp_path / "differences.png").stat().st_size > 3000


def test_the_committed_tables_belong_together(study: SimpleNamespace) -> None:
    results = study.tables.read_csv(FOLDER / "results.csv")
    assert (FOLDER / "results.md").read_text(encoding="utf-8") == study.tables.page(results)
    assert {one.arm for one in results} == set(study.sweep.ARMS)
    table = study.tables.table(results)
    assert table in (FOLDER.parents[1] / "docs" / "tuning.md").read_text(encoding="utf-8")
