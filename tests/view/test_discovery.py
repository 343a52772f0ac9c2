"""Which folders count as runs, and what tells that one has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.errors import RunDirectoryError
from covey.runlog import RunDirectory
from covey.runlog.notes import Tags, write_tags
from covey.view.runs import DEPTH, RunStore, UnknownRunError, find_runs, is_run, signature


def run_in(folder: Path) -> Path:
    """The least that makes a run."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1, "train/reward": 0.5}\n')
    return folder


def test_runs_and_evaluations_are_found_wherever_they_lie(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = run_in(out / "a")
    run_in(run / "checkpoint-1" / "records")  # belongs to the run
    (run / "evaluation" / "test-final").mkdir(parents=True)
    (run / "evaluation" / "test-final" / "settings.json").write_text("{}")  # likewise
    run_in(out / "sweep" / "1,seed=2")
    run_in(out / ".hidden")
    (out / "gsm8k").mkdir()
    (out / "gsm8k" / "settings.json").write_text("{}")
    (out / "gsm8k" / "completions.jsonl").touch()
    (out / "an editor").mkdir()
    (out / "an editor" / "settings.json").write_text("{}")  # alone it is no evaluation
    (out / "some project").mkdir()
    (out / "some project" / "config.yaml").write_text("a: 1")
    elsewhere = run_in(tmp_path / "elsewhere")
    (out / "linked").symlink_to(elsewhere)
    (out / "folder of runs").symlink_to(tmp_path)
    (out / "loop").symlink_to(out / "loop")
    assert sorted(find_runs(out)) == ["a", "gsm8k", "linked", "sweep/1,seed=2"]
    assert find_runs(run) == {".": run}


@pytest.mark.parametrize(("below", "found"), [(DEPTH - 1, True), (DEPTH, False)])
def test_the_search_has_an_end(below: int, found: bool, tmp_path: Path) -> None:
    run_in(tmp_path.joinpath(*"abcdefgh"[:below], "run"))
    assert bool(find_runs(tmp_path)) is found


def test_a_run_is_listed_while_it_is_being_prepared(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "out" / "new")
    with run.lock():  # before its config is written
        assert list(find_runs(tmp_path / "out")) == ["new"]
    run.root.mkdir(parents=True)
    run.config.write_text("a: 1")
    assert not find_runs(tmp_path / "out")
    with run.lock():
        assert list(find_runs(tmp_path / "out")) == ["new"]


def test_a_sweep_that_is_running_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    with RunDirectory(tmp_path / "sweep").lock():
        assert not find_runs(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such names")
def test_a_name_that_is_no_text_is_shown_as_one(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"run-\xff")
    try:
        run_in(folder)
    except OSError:
        pytest.skip("this file system takes only text as names")
    assert find_runs(tmp_path) == {"run-?": folder}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_folders_that_may_not_be_read_hide_nothing_else(tmp_path: Path) -> None:
    run_in(tmp_path / "a")
    closed = run_in(tmp_path / "b")
    closed.chmod(0)
    try:
        assert list(find_runs(tmp_path)) == ["a"]
        for folder in (closed, closed / "c"):
            with pytest.raises(RunDirectoryError, match="may not be read: name a run"):
                RunStore(folder)
    finally:
        closed.chmod(0o755)


def test_a_run_that_is_deleted_meanwhile_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        run_in(tmp_path / name)

    def gone(folder: Path) -> bool:
        if folder.name == "a":
            raise FileNotFoundError(folder)
        return is_run(folder)

    monkeypatch.setattr("covey.view.runs.is_run", gone)
    assert list(find_runs(tmp_path)) == ["b"]


CHANGES: dict[str, Callable[[Path], object]] = {
    "a row": lambda run: (run / "metrics.jsonl").write_text("{}\n"),
    "completions": lambda run: (run / "completions" / "step-000002.parquet").write_text(""),
    "an evaluation of training": lambda run: (run / "evaluation" / "test-step-000002.jsonl").write_text(""),
    "an evaluation": lambda run: (run / "evaluation" / "gsm8k-final" / "summary.json").write_text("{}"),
    "a summary": lambda run: (run / "summary.json").write_text("{}"),
    "a tag": lambda run: write_tags(run, Tags(("new",))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_that_is_shown_is_noticed(change: str, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    (run / "completions").mkdir()
    (run / "evaluation" / "gsm8k-final").mkdir(parents=True)
    for path in (run / "completions", run / "evaluation", run / "evaluation" / "gsm8k-final", run / "metrics.jsonl"):
        os.utime(path, (1, 1))
    before = signature(run)
    assert signature(run) == before
    CHANGES[change](run)
    assert signature(run) != before


def test_the_end_of_a_process_is_a_change(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    with RunDirectory(run).lock():
        before = signature(run)
    assert signature(run) != before


def test_only_what_the_list_shows_has_an_id(tmp_path: Path) -> None:
    run_in(tmp_path / "out" / "a")
    run_in(tmp_path / "secret")
    store = RunStore(tmp_path / "out")
    assert store.path("a") == tmp_path / "out" / "a"
    for identity in ("../secret", "a/../../secret", str(tmp_path / "secret"), "", "b", "a/"):
        with pytest.raises(UnknownRunError, match="holds no run"):
            store.path(identity)


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_folder_that_cannot_be_searched(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"(does not exist|is a file): name a run, or the folder"):
        RunStore(tmp_path / name)
