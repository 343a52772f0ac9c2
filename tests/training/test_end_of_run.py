"""The commands that a run advises at its end."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

from commands import TINY
from covey.cli.main import main, parse
from covey.config import compose
from covey.runlog import RunDirectory
from covey.training.end import end_run
from covey.training.run import RunResult
from made_run import make_run, write_evaluation


def test_the_run_to_compare_with_is_one_that_can_be_compared(tmp_path: Path) -> None:
    for age, (name, grader) in enumerate([("c", "exact_match"), ("b", "accuracy"), ("a", "exact_match")]):
        root = make_run(tmp_path / name, 2)
        write_evaluation(root, 2, [0.0] * 4)
        config = root / "config.yaml"
        config.write_text(config.read_text().replace("exact_match", grader))
        (root / "summary.json").write_text("{}")
        (root / "report.html").touch()
        os.utime(root / "summary.json", (1e9 - age, 1e9 - age))

    def advised() -> list[str]:
        console = Console(record=True, width=200, force_terminal=False, file=io.StringIO())
        result = RunResult(RunDirectory(tmp_path / "c"), finished=True, step=2, trained=False)
        end_run(result, compose().config, console)
        return [line.split("covey ")[1] for line in console.export_text().splitlines() if "  covey " in line]

    runs = {name: str(tmp_path / name) for name in "ac"}
    assert advised() == [f"view {tmp_path}", f"chat {runs['c']}", f"compare {runs['a']} {runs['c']}"]
    shutil.rmtree(runs["a"])  # what is left was graded otherwise
    assert advised()[2] == f"eval {runs['c']} evaluation=greedy"


def test_a_stopped_run_of_a_launcher_names_the_launchers_command(tmp_path: Path) -> None:
    console = Console(record=True, width=200, force_terminal=False, file=io.StringIO())
    result = RunResult(RunDirectory(make_run(tmp_path / "r", 2)), finished=False, step=2, reason="SIGTERM")
    end_run(result, compose(["run_name=r"]).config, console, resume="covey launch r.yaml run_name=r")
    text = console.export_text()
    assert "with a checkpoint. Reason: SIGTERM. To resume from it: covey launch r.yaml run_name=r\n" in text
    assert "covey train" not in text


@pytest.mark.slow
@pytest.mark.long
def test_what_a_run_advises_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command as it is printed, in a folder whose name needs quotes, with a grader that is not the implied one."""
    monkeypatch.chdir(tmp_path)
    words = ["train", *TINY, "output_dir=two words", "evaluation.grader=accuracy", "evaluation.num_samples=2"]
    advised = {}
    for name in ("first", "second"):
        assert main([*words, f"run_name={name}"]) == 0
        output = capsys.readouterr().out
        advised[name] = [shlex.split(line)[1:] for line in re.findall(r"^.*\b(covey \w+ .*)$", output, re.MULTILINE)]
    assert [[one[0] for one in commands] for commands in advised.values()] == [
        ["view", "chat", "eval"],
        ["view", "chat", "compare"],
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO("1 + 1 =\n"))
    for view, *others in advised.values():
        assert parse(view).folder == "two words"
        for command in others:
            assert main(command) == 0, command
    settings = json.loads(next(Path("two words/first/evaluation").glob("*/settings.json")).read_text())
    assert (settings["grader"], settings["num_samples"]) == ("accuracy", 2)
    assert settings["sampling"]["temperature"] == 0
