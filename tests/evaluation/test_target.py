"""Names of models, runs and evaluations that lead nowhere or to damaged files, and what the message offers instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covey.errors import ModelError, RunDirectoryError
from covey.evaluation.stored import find_target, read_stored
from covey.runlog.evaluations import begin_evaluation
from made_run import make_run, write_evaluation


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


def test_many_runs_are_not_all_listed(run: Path) -> None:
    for number in range(9):
        other = run.parent / f"zz{number}"
        other.mkdir()
        (other / "config.yaml").touch()
    with pytest.raises(RunDirectoryError) as caught:
        find_target("out/alpha")
    listed = ", ".join(["first", *(f"zz{number}" for number in range(7))])
    assert str(caught.value) == f"There is no run out/alpha. The runs in out are {listed} and 2 more."


def test_adapters_name_their_model(tmp_path: Path) -> None:
    described = tmp_path / "adapter_config.json"
    described.write_text('{"base_model_name_or_path": "org/base"}')
    found = find_target(str(tmp_path))
    assert (found.source, found.adapter, found.run) == ("org/base", tmp_path, None)
    for text in ("{", "{}", '{"base_model_name_or_path": null}'):
        described.write_text(text)
        with pytest.raises(ModelError, match=r"adapter_config\.json does not say which model its adapters belong to"):
            find_target(str(tmp_path))


def test_an_evaluation_that_is_not_finished(tmp_path: Path) -> None:
    begin_evaluation(tmp_path / "out", {"name": "test"})
    with pytest.raises(RunDirectoryError, match=r"out is not finished: the same `covey eval` command resumes it\.$"):
        read_stored(tmp_path / "out")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"length": "ten"}, "with values of other types than Covey writes: the file was changed. Delete it."),
        ({"prompt": None, "problem": "a"}, "with values of other types than Covey writes"),
        ({"truncated": ...}, "without 'truncated': the file was changed. Delete it."),
    ],
)
def test_completions_of_training_that_were_changed(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    file = write_evaluation(make_run(tmp_path / "run", steps=1), 1, [0, 1])
    assert read_stored(file).summary["accuracy"]["value"] == 0.5
    first, second = map(json.loads, file.read_text().splitlines())
    second = {name: value for name, value in {**second, **changed}.items() if value is not ...}
    file.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    with pytest.raises(RunDirectoryError) as caught:
        read_stored(file)
    assert f"test-step-000001.jsonl holds completions {message}" in str(caught.value)
