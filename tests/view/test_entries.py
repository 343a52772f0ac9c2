"""The lines of the list of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from covey.runlog import MetricsWriter, RunDirectory
from covey.runlog.evaluations import append_completions, begin_evaluation, finish_evaluation
from covey.runlog.notes import Tags, write_failure, write_tags
from covey.view.runs import Entry, RunStore, entry_of
from made_run import write_evaluation

CONFIG = """\
model: {name: Qwen/Qwen3-0.6B}
dataset: {path: /data/train.jsonl}
objective: {name: maxent}
rewards: {funcs: [exact_match]}
training: {max_steps: 8}
"""


def figure(value: float) -> dict[str, float]:
    return {"eval/accuracy": value, "eval/accuracy_low": value - 0.1, "eval/accuracy_high": value + 0.1}


ROWS: dict[int, Mapping[str, Any]] = {
    0: {**figure(0.25), "time/evaluation": 2.0},
    1: {"train/reward": 0.1, "time/step": 1.5, "train/num_tokens": 100.0},
    2: {**figure(0.75), "time/step": 1.5, "time/evaluation": 2.0, "train/num_tokens": 180.0},
    3: {**figure(0.5), "time/step": 1.0, "train/num_tokens": 250.0},
}


def made(folder: Path, rows: Mapping[int, Mapping[str, Any]] = ROWS, config: str = CONFIG) -> RunDirectory:
    run = RunDirectory(folder)
    writer = MetricsWriter(run.metrics, None)
    for step, row in rows.items():
        writer.add(step, row)
    writer.flush()
    run.config.write_text(config)
    return run


def test_every_figure_of_a_run(tmp_path: Path) -> None:
    run = made(tmp_path / "out" / "first")
    run.environment.write_text('{"format": 1, "started": "2026-01-02T03:04:05+00:00"}')
    write_evaluation(run.root, 3, [1, 0, 1, 0])
    write_tags(run.root, Tags(("base",), "the first one"))
    (entry,) = RunStore(tmp_path / "out").entries()
    assert entry == Entry(
        id="first",
        name="first",
        path=str(run.root),
        status="stopped",
        model="Qwen/Qwen3-0.6B",
        data="train.jsonl",
        objective="maxent",
        step=3,
        max_steps=8,
        metric="accuracy",
        grader="exact_match",
        value=0.5,
        low=0.4,
        high=0.6,
        problems=4,
        best={"step": 2, "value": 0.75},
        tokens=250,
        seconds=2.0 + 1.5 + 1.5 + 2.0 + 1.0,
        started="2026-01-02T03:04:05+00:00",
        tags=("base",),
        note="the first one",
    )


@pytest.mark.parametrize("values", [(0.5,), (0.5, 0.5), (0.5, 0.25)])
def test_no_best_without_an_improvement(values: tuple[float, ...], tmp_path: Path) -> None:
    made(tmp_path / "run", {step: figure(value) for step, value in enumerate(values)})
    entry = entry_of(tmp_path / "run", "run")
    assert entry.best is None
    assert entry.value == values[-1]


def test_the_figure_is_what_decides_the_best_checkpoint(tmp_path: Path) -> None:
    rows = {0: {**figure(0.25), "eval/format": 0.5}, 4: {**figure(0.5), "eval/format": 0.75}}
    made(tmp_path / "by format", rows, CONFIG + "evaluation: {best_by: format}\n")
    made(tmp_path / "ungraded", {0: {"eval/reward": 1.5}}, CONFIG.replace("exact_match", "mine.py:f"))
    by_format, ungraded = (entry_of(tmp_path / name, name) for name in ("by format", "ungraded"))
    assert (by_format.metric, by_format.grader, by_format.value) == ("format", None, 0.75)
    assert (ungraded.metric, ungraded.grader, ungraded.value) == ("reward", None, 1.5)


def status(folder: Path) -> str:
    return entry_of(folder, "run").status


def test_statuses(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    with run.lock():
        assert status(run.root) == "preparing"
        run.config.write_text(CONFIG)
        assert status(run.root) == "preparing"
        made(run.root)
        assert status(run.root) == "training"
    assert status(run.root) == "stopped"
    write_failure(run, ValueError("no more paper"))
    failed = entry_of(run.root, "run")
    assert (failed.status, failed.message) == ("failed", "ValueError: no more paper")
    run.summary.write_text('{"training_seconds": 3.0}')
    assert status(run.root) == "finished"
    run.summary.unlink()
    run.final_model.mkdir()
    assert status(run.root) == "finished"


def test_an_evaluation_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "gsm8k"
    settings = {"name": "gsm8k", "num_samples": 1, "data": {"problems": 2}, "grader": "maths", "model": {"id": "base"}}
    begin_evaluation(folder, settings | {"environment": {"started": "2026-01-02T03:04:05+00:00"}})
    assert status(folder) == "stopped"
    with RunDirectory(folder).lock():
        assert status(folder) == "evaluating"
    append_completions(folder, [{"problem": 0}, {"problem": 1}])
    finish_evaluation(folder, {"accuracy": (0.5, 0.1, 0.9)})
    entry = entry_of(folder, "gsm8k")
    assert (entry.kind, entry.status, entry.model, entry.data) == ("evaluation", "finished", "base", "gsm8k")
    assert (entry.metric, entry.grader, entry.problems) == ("accuracy", "maths", 2)
    assert (entry.value, entry.low, entry.high) == (0.5, 0.1, 0.9)
    assert entry.started == "2026-01-02T03:04:05+00:00"


DAMAGE = {
    "metrics.jsonl": ("1\n2\n3\n", "line 1, is not a row of metrics"),
    "config.yaml": ("model: [", "config.yaml cannot be read"),
    "environment.json": ('{"format": 99}', "newer version of Covey"),
}


@pytest.mark.parametrize("file", DAMAGE)
def test_a_damaged_run_does_not_hide_the_others(file: str, tmp_path: Path) -> None:
    made(tmp_path / "whole")
    run = made(tmp_path / "broken")
    text, reason = DAMAGE[file]
    (run.root / file).write_text(text)
    by_name = {entry.name: entry for entry in RunStore(tmp_path).entries()}
    assert by_name["whole"].status == "stopped"
    assert by_name["broken"].status == "failed"
    assert reason in str(by_name["broken"].message)


HOSTILE = {
    "config of lists": ("config.yaml", "model: [1]\ndataset: 3\ntraining: []\n"),
    "a deep config": ("config.yaml", "a: " + "[" * 100_000 + "]" * 100_000),
    "a config that expands": (
        "config.yaml",
        "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    ),
    "a step of text": ("metrics.jsonl", '{"step": 1, "time/step": "soon", "eval/accuracy": {"a": 1}}\n'),
    "a huge number": ("metrics.jsonl", '{"step": 1, "time/step": 1e999, "eval/accuracy": 1' + "0" * 400 + "}\n"),
    "a deep row": ("metrics.jsonl", '{"step": 1, "a": ' + "[" * 100_000 + "}\n{}\n"),
    "no numbers": (
        "metrics.jsonl",
        '{"step": 1, "time/step": NaN, "eval/accuracy": NaN, "train/num_tokens": -Infinity}\n',
    ),
    "tags of numbers": ("tags.json", '{"tags": [1, 2], "note": 3}'),
    "an evaluation of text": ("evaluation/test-step-000003.jsonl", "[[[[\n"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_files_of_any_content_make_a_line_of_the_list(what: str, tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    run.evaluation.mkdir()
    file, text = HOSTILE[what]
    (run.root / file).write_text(text)
    (entry,) = RunStore(tmp_path).entries()
    assert json.loads(json.dumps(entry.as_json(), allow_nan=False))["id"] == "run"


def test_the_newest_run_comes_first_and_only_changed_ones_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, day in (("old", 1), ("new", 3), ("middle", 2)):
        run = made(tmp_path / name)
        run.environment.write_text(json.dumps({"started": f"2026-01-0{day}T00:00:00+00:00"}))
    store = RunStore(tmp_path)
    assert [entry.id for entry in store.entries()] == ["new", "middle", "old"]
    read: list[str] = []

    def counted(folder: Path, identity: str) -> Entry:
        read.append(identity)
        return entry_of(folder, identity)

    monkeypatch.setattr("covey.view.runs.entry_of", counted)
    store.entries()
    assert read == []
    write_tags(tmp_path / "old", Tags(("kept",)))
    assert store.entries()[-1].tags == ("kept",)
    assert read == ["old"]
