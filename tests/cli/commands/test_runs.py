"""`covey runs`: the list in the terminal, and what one does with a run."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from covey.cli.main import main
from covey.runlog import RunDirectory
from covey.runlog.evaluations import begin_evaluation, finish_evaluation
from covey.runlog.notes import Tags, write_tags
from covey.view.app import make_app
from made_run import make_run, write_evaluation

CONFIG = """\
model: {name: starter}
dataset: {task: arithmetic}
rewards: {funcs: [exact_match]}
training: {max_steps: %d}
"""


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `out` of the working directory, with two runs and one in a sweep."""
    monkeypatch.chdir(tmp_path)
    for place, scores in (("a", [0] * 12 + [1] * 8), ("b", [1] * 20), ("sweep/a", [0] * 20)):
        run = make_run(tmp_path / "out" / place, steps=4)
        (run / "config.yaml").write_text(CONFIG % 4)
        write_evaluation(run, 4, scores)
        (run / "train.log").write_text("".join(f"line {number}\n" for number in range(50)) + "\x1b[31mred\n")
    return Path("out")


@pytest.fixture
def covey(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def command(*words: object) -> tuple[int, str, str]:
        code = main(["runs", *map(str, words)])
        return code, *capsys.readouterr()

    return command


Command = Callable[..., tuple[int, str, str]]


def test_the_table(out: Path, covey: Command) -> None:
    write_tags(out / "a", Tags(("[bold]good[/bold]",)))
    code, text, _ = covey()
    assert code == 0
    heading, _, *rows = (line.split() for line in text.splitlines() if line.strip())
    assert heading[:3] == ["run", "status", "model"]
    assert sorted(row[0] for row in rows) == ["a", "b", "sweep/a"]
    (first,) = (line for line in text.splitlines() if line.strip().startswith("a "))
    assert "4/4" in first
    assert "accuracy (grader: exact_match)" in first
    assert "[bold]good[/bold]" in first  # text, not a style
    assert "0:08" in first  # four steps of two seconds
    code, text, _ = covey(out, "--baseline", "b")
    assert code == 0
    assert "-60.0 [" in next(line for line in text.splitlines() if line.strip().startswith("a "))


def test_json_is_what_the_view_serves(out: Path, covey: Command) -> None:
    view = TestClient(make_app(out, "token", "cookie"), "http://localhost", headers={"authorization": "Bearer token"})
    for words, query in (([], {}), (["--baseline", "sweep/a"], {"baseline": "sweep/a"})):
        code, text, _ = covey(out, "--json", *words)
        assert code == 0
        assert json.loads(text) == view.get("/api/runs", params=query).json()
    (entry,) = (one for one in json.loads(text) if one["id"] == "b")
    assert entry["difference"]["value"] == 1.0
    assert (entry["name"], entry["path"], entry["status"]) == ("b", "out/b", "finished")


def test_an_empty_folder(tmp_path: Path, covey: Command) -> None:
    assert covey(tmp_path, "--json")[:2] == (0, "[]\n")
    assert covey(tmp_path)[:2] == (0, f"There are no runs in {tmp_path}.\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist: name a run, or the folder"),
        (["out", "out/a"], "covey runs lists one folder, and got 2."),
        (["path"], "covey runs path needs a run"),
        (["path", "c"], "There is no run c in out. `covey runs out` lists its runs."),
        (["rm", "c", "-y"], "There is no run c in out."),
        (["rm", "out", "-y"], "There is no run out in out."),
        (["rm", "out/sweep", "-y"], "There is no run out/sweep in out."),
        (["rm", "a"], "covey runs rm asks before it deletes"),
        (["tail", "a", "-y"], "-y is no option of covey runs tail"),
        (["-f"], "-f is no option of the list of runs"),
        (["path", "a", "--json"], "--json is no option of covey runs path"),
        (["tail", "a", "-n", "-3"], "-n -3: the number of lines is 0 or more."),
        (["--baseline", "c"], "There is no run c in out."),
    ],
)
def test_what_cannot_be_done(words: Sequence[str], message: str, out: Path, covey: Command) -> None:
    if words[:2] in (["path", "a"], ["rm", "a"], ["tail", "a"]):
        (out / "sweep" / "a").rename(out / "sweep" / "c2")
    code, text, error = covey(*words)
    assert (code, text) == (1 if "does not exist" in message else 2, "")
    assert error.startswith(f"covey: {message}")
    assert error.count("\n") == 1


def test_a_run_is_named_by_folder_place_or_name(out: Path, covey: Command) -> None:
    place = out.absolute()
    assert covey("path", "b", "sweep/a", "out/a", place / "b")[1].splitlines() == [
        str(place / name) for name in ("b", "sweep/a", "a", "b")
    ]
    assert covey("path", "a")[1] == f"{place / 'a'}\n"  # its place in the list comes before a name
    (out / "more").mkdir()
    (out / "a").rename(out / "more" / "a")
    code, _, error = covey("path", "a")
    assert code == 2
    assert "several runs called a: more/a, sweep/a" in error
    assert covey("path", "a", "--in", "out/more")[1] == f"{place / 'more' / 'a'}\n"


def test_the_end_of_a_log(out: Path, covey: Command) -> None:
    lines = [*(f"line {number}" for number in range(50)), "[31mred"]  # no escape reaches the terminal
    assert covey("tail", "b")[1].splitlines() == lines[-20:]
    assert covey("tail", "b", "-n", 2)[1].splitlines() == lines[-2:]
    assert covey("tail", "b", "-n", 0)[1] == ""
    assert covey("tail", "b", "-n", 1000, "-f")[1].splitlines() == lines  # nobody writes it
    (out / "b" / "train.log").unlink()
    code, _, error = covey("tail", "b")
    assert code == 1
    assert "has no train.log" in error


def test_a_log_is_followed_until_the_run_ends(out: Path, covey: Command) -> None:
    run = RunDirectory(out / "b")
    locked = threading.Event()

    def train() -> None:
        with run.lock():
            locked.set()
            time.sleep(0.3)
            with run.log.open("a") as log:
                log.write("one more\nhalf a")
                log.flush()
                time.sleep(0.8)
                log.write(" line\n")
            run.log.write_text("emptied\n")  # a long log is

    thread = threading.Thread(target=train)
    thread.start()
    locked.wait()
    _, text, _ = covey("tail", "b", "-n", 1, "-f")
    thread.join()
    assert text.splitlines()[:2] == ["[31mred", "one more"]
    assert text.splitlines()[-1] == "emptied"


def test_deleting_a_run(out: Path, covey: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return "n" if len(asked) == 1 else "yes"

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    write_tags(out / "a", Tags(("good",)))
    assert covey("rm", "out/a")[1] == "out/a stays.\n"
    assert (out / "a" / "metrics.jsonl").is_file()
    assert covey("rm", "out/a")[1] == "Deleted out/a\n"
    assert not (out / "a").exists()
    assert asked[0].startswith("Delete out/a (finished, ")
    (out / "b" / "my notes.md").write_text("mine")
    assert covey("rm", "b", "sweep/a", "-y")[1] == (
        "Deleted out/b, but for what Covey did not write: my notes.md\nDeleted out/sweep/a\n"
    )
    assert [path.name for path in (out / "b").iterdir()] == ["my notes.md"]
    assert len(asked) == 2


def test_a_run_that_is_being_written_stays(out: Path, covey: Command) -> None:
    before = sorted((out / "b").rglob("*"))
    with RunDirectory(out / "b").lock():
        code, _, error = covey("rm", "b", "-y")
    assert code == 1
    assert "out/b is being written by another process" in error
    assert sorted((out / "b").rglob("*")) == before


def test_what_is_no_run_is_not_deleted(out: Path, covey: Command) -> None:
    """Another program's folder may have files of the same names."""
    (out / "project" / "code").mkdir(parents=True)
    (out / "project" / "code" / "main.py").write_text("mine")
    (out / "project" / "metrics.jsonl").write_text('{"step": 1}\n')
    (out / "project" / "environment.json").write_text('{"name": "mine"}')
    (out / "editor").mkdir()
    (out / "editor" / "settings.json").write_text('{"format": 1}')
    before = sorted(out.rglob("*"))
    code, _, error = covey("rm", "project", "-y")
    assert (code, "says that Covey wrote it: delete it by hand" in error) == (1, True)
    code, _, error = covey("rm", "out/editor", "-y")
    assert (code, "There is no run out/editor" in error) == (2, True)
    assert sorted(out.rglob("*")) == before


def test_what_links_in_a_run_lead_to_stays(out: Path, covey: Command, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "checkpoint-5").mkdir(parents=True)
    (mine / "checkpoint-5" / "complete.json").write_text("{}")
    for name in ("completions", "evaluation"):
        (out / "a" / name).rename(mine / name)
    before = sorted(mine.rglob("*"))
    for name in ("completions", "evaluation", "code", "final_model", "checkpoint-5", "tags.json"):
        (out / "a" / name).symlink_to(mine / name if (mine / name).exists() else mine)
    (out / "a" / "curves.png").mkdir()
    (out / "a" / "rollouts").write_text("a file")
    (out / "a" / ".mine.tmp").mkdir()
    assert covey("rm", "a", out / "a", "-y")[1] == "Deleted out/a, but for what Covey did not write: .mine.tmp\n"
    assert sorted(mine.rglob("*")) == before


def test_deleting_the_working_directory(out: Path, covey: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out / "a")
    assert covey("rm", ".", "-y")[:2] == (0, "Deleted .\n")
    assert not (Path("..") / "a").exists()


def test_a_hostile_name(out: Path, capfdbinary: pytest.CaptureFixture[bytes], caplog: pytest.LogCaptureFixture) -> None:
    name = "x\x1b[31m\u202ey"
    (out / "b").rename(out / name)
    (out / name / "environment.json").write_text("{")  # a warning tells
    for words in ((), ("--json",), ("tail", name), ("rm", name, "-y")):
        main(["runs", *words])
    printed, warned = capfdbinary.readouterr()
    for text in (printed, warned):
        assert b"\x1b[31m" not in text
        assert "\u202e".encode() not in text
    assert b"x[31my" in printed
    assert logging.lastResort is not None
    texts = {logging.lastResort.format(record) for record in caplog.records}  # pytest's own handlers take its place
    assert any(r"x\x1b[31m\u202ey/environment.json cannot be read" in text for text in texts)


def test_a_path_that_is_no_text(out: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    folder = out.absolute() / os.fsdecode(b"run-\xff")
    try:
        (out / "b").rename(folder)
    except OSError:
        pytest.skip("this file system takes only text as names")
    assert main(["runs", "path", "run-?"]) == 0
    assert capfdbinary.readouterr().out == os.fsencode(folder) + b"\n"


def test_deleting_an_evaluation_and_a_link(out: Path, covey: Command, tmp_path: Path) -> None:
    begin_evaluation(out / "gsm8k", {"name": "gsm8k", "num_samples": 1, "data": {"problems": 1}})
    finish_evaluation(out / "gsm8k", {"accuracy": (1.0, 0.5, 1.0)})
    assert covey("rm", "gsm8k", "-y")[1] == "Deleted out/gsm8k\n"
    assert not (out / "gsm8k").exists()
    run = make_run(tmp_path / "elsewhere", steps=1)
    (out / "linked").symlink_to(run)
    code, _, error = covey("rm", "linked", "-y")
    assert code == 1
    assert "out/linked is a link" in error
    assert (run / "metrics.jsonl").is_file()
