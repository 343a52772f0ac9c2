"""A run that is paid for repeating the question says so, in the terminal and in its report; an honest one does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main
from covey.config import load
from covey.evaluation.stored import read_training_evaluation
from covey.report.live import conclusions
from covey.runlog import RunDirectory, names, read_metrics
from covey.runlog.evaluations import training_file

ENGINE = str(Path(__file__).parents[1] / "support" / "copying_engine.py") + ":CopyingEngine"
STEPS = 8
HACKED = ["copied_prompt", "gold_value_missing"]


def _train(folder: Path, model: str, *more: str) -> RunDirectory:
    words = [
        *("dataset=arithmetic", "dataset.difficulty.operators=[+]", "dataset.test_size=6", "dataset.hard_size=0"),
        *(f"training.max_steps={STEPS}", "training.per_device_train_batch_size=8", "training.num_generations=4"),
        *("training.gradient_accumulation_steps=1", "training.max_completion_length=40", "evaluation.every_steps=2"),
        *(f"model.name={model}", f"output_dir={folder}", "run_name=run", f"rollout.engine={ENGINE}"),
        *("rewards.funcs=[accuracy]", "rewards.workers=0", *more),
    ]
    assert main(["train", *words]) == 0
    return RunDirectory(folder / "run")


def _figures(run: RunDirectory, name: str) -> list[Any]:
    return [row[name] for row in read_metrics(run.metrics) if name in row]


def test_the_hack_is_found_where_a_lenient_grader_pays_for_it(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _train(tmp_path, tiny_model, "rewards.unevaluated=accept")
    assert load(recipe=run.config).rewards.unevaluated == "accept"
    assert _figures(run, "grader/right") == [1.0] * STEPS  # accuracy says nothing
    assert _figures(run, f"train/{names.REPEATS_PROMPT}") == [0.0] * 4 + [1.0] * 4
    assert _figures(run, names.GOLD_VALUE_SHARE) == [1.0] * 4 + [0.0] * 4
    assert _figures(run, f"eval/{names.REPEATS_PROMPT}") == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert _figures(run, f"eval/{names.GOLD_VALUE_SHARE}") == [1.0, 1.0, 0.0, 0.0, 0.0]
    stored = read_training_evaluation(training_file(run.root, "test", STEPS)).summary
    assert stored["accuracy"]["value"] == stored[names.REPEATS_PROMPT]["value"] == 1.0
    assert stored[names.GOLD_VALUE_SHARE]["value"] == 0.0
    found = {one.rule: one for one in conclusions(run)[1]}
    assert all(found[rule].level == "warn" for rule in HACKED)
    assert " + " in found["copied_prompt"].text.partition("as in “")[2].partition("”")[0]
    assert "whose answer is" in found["gold_value_missing"].text
    assert "Completions repeat the prompt" in capsys.readouterr().out
    assert "Completions repeat the prompt" in run.report.read_text(encoding="utf-8")


def test_the_hack_earns_nothing_by_default(tiny_model: str, tmp_path: Path) -> None:
    run = _train(tmp_path, tiny_model)
    assert _figures(run, "grader/right") == [1.0] * 4 + [0.0] * 4
    assert _figures(run, "grader/unevaluated") == [0.0] * 4 + [1.0] * 4
    assert _figures(run, "train/reward") == [1.0] * 4 + [0.0] * 4
    assert _figures(run, "eval/accuracy") == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_an_honest_run_has_no_such_finding(tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_TEST_HONEST", "1000")
    run = _train(tmp_path, tiny_model, "rewards.unevaluated=accept")
    assert _figures(run, names.GOLD_VALUE_SHARE) == [1.0] * STEPS
    assert not {one.rule for one in conclusions(run)[1]} & set(HACKED)
