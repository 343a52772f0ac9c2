"""Damaged files, newer formats and full disks: one paragraph each, nothing lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.cli.main import main, parse
from covey.errors import RunDirectoryError
from covey.report.completions import pack_completions
from covey.report.load import load_run
from covey.runlog.evaluations import append_completions, begin_evaluation, finish_evaluation, read_completions
from limited_files import call_limited
from made_run import make_run

SETTINGS = {
    "name": "test",
    "num_samples": 1,
    "grader": "accuracy",
    "data": {"problems": 3, "problems_fingerprint": "a"},
}
ROWS: list[dict[str, Any]] = [{"problem": number, "outcome": "right"} for number in range(3)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    make_run(run, 4, 4)
    (run / "environment.json").write_text('{"format": 1}')
    folder = run / "evaluation" / "test-final-greedy"
    begin_evaluation(folder, SETTINGS)
    append_completions(folder, ROWS)
    finish_evaluation(folder, {"accuracy": (1.0, 0.4, 1.0)})
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def a_parquet(run: Path) -> Path:
    return sorted((run / "completions").glob("*.parquet"))[1]


def cut(run: Path) -> None:
    a_parquet(run).write_bytes(a_parquet(run).read_bytes()[:200])


def emptied(run: Path) -> None:
    a_parquet(run).write_bytes(b"")


def scrambled(run: Path) -> None:
    held = bytearray(a_parquet(run).read_bytes())
    held[100 : len(held) // 2] = bytes(byte ^ 0x5A for byte in held[100 : len(held) // 2])  # the footer stays readable
    a_parquet(run).write_bytes(held)


def of_a_newer_version(run: Path) -> None:
    (run / "environment.json").write_text('{"format": 99, "packages": {"covey": "9.0"}}')


def without_figures(run: Path) -> None:
    (run / "evaluation" / "test-final-greedy" / "summary.json").write_text('{"format": 1}')


def with_few_settings(run: Path) -> None:
    (run / "evaluation" / "test-final-greedy" / "settings.json").write_text('{"format": 1}')


@pytest.mark.parametrize(
    ("damage", "command", "message"),
    [
        (with_few_settings, "compare", "test-final-greedy is damaged"),
        (of_a_newer_version, "report", "newer version of Covey (9.0: run format 99"),
        (of_a_newer_version, "compare", "newer version of Covey"),
        (of_a_newer_version, "eval", "newer version of Covey"),
    ],
)
def test_one_paragraph_and_no_traceback(
    run: Path, damage: Callable[[Path], None], command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run)
    assert main([command, str(run)]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("damage", [cut, emptied, scrambled])
def test_a_report_skips_damaged_completions_with_a_warning(
    run: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(run)
    assert main(["report", str(run)]) == 0
    assert "step-000002.parquet is not a complete Parquet file" in caplog.text
    packed = pack_completions(load_run(run))
    assert packed.shown == 12 + 3  # of the 4 steps' 16, and of an evaluation


def test_a_report_skips_damaged_evaluations_with_a_warning(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    without_figures(run)
    assert main(["report", str(run)]) == 0
    assert "test-final-greedy is damaged" in caplog.text


@pytest.mark.parametrize(
    ("rows", "message"), [([*ROWS[:2], {"problem": 2}], "Completion 3 of"), (ROWS[:2], "3 problems and has them of 2")]
)
def test_compare_names_damaged_completions(
    run: Path, rows: list[dict[str, Any]], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = run / "evaluation" / "test-final-greedy"
    bad = Path(shutil.copytree(good, run / "evaluation" / "bad"))
    (bad / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["compare", str(good), str(bad)]) == 1
    assert message in capsys.readouterr().err


def report_on_a_long_page(run: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covey.report.page.render_report", lambda *_: 9999 * "a page")  # drawing one takes seconds
        return main(["report", str(run)])


def test_an_evaluation_resumes_after_a_full_disk(tmp_path: Path) -> None:
    begin_evaluation(tmp_path / "out", SETTINGS)
    append_completions(tmp_path / "out", ROWS[:2])
    room = (tmp_path / "out" / "completions.jsonl").stat().st_size + 10
    with pytest.raises(RunDirectoryError, match=r"larger than is allowed.*--out"):
        call_limited(room, append_completions, tmp_path / "out", ROWS[2:])
    assert list(read_completions(tmp_path / "out")) == ROWS[:2]
    assert begin_evaluation(tmp_path / "out", SETTINGS) == ROWS[:2]  # and removes the truncated line
    append_completions(tmp_path / "out", ROWS[2:])
    assert list(read_completions(tmp_path / "out")) == ROWS


def test_a_page_that_cannot_be_written_leaves_the_old_one(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (run / "report.html").write_text("old")
    assert call_limited(4096, report_on_a_long_page, run) == 1
    assert "Could not write report.html" in capfd.readouterr().err
    assert (run / "report.html").read_text() == "old"
    assert not list(run.glob(".*.tmp"))
    assert main(["report", str(run), "--out", str(run)]) == 2
    assert "is a folder" in capfd.readouterr().err


def test_differing_settings_are_named(tmp_path: Path) -> None:
    begin_evaluation(tmp_path / "out", SETTINGS)
    other = {**SETTINGS, "data": {"problems": 5, "problems_fingerprint": "b"}}
    with pytest.raises(RunDirectoryError, match=r"\(data.problems: 3 there, 5 here; other problems\)"):
        begin_evaluation(tmp_path / "out", other)


def test_options_of_commands_with_overrides_are_read_as_options() -> None:
    asked = parse(["eval", "out/run", "--checkpoint", "best", "--all", "seed=1"])
    assert (asked.checkpoint, asked.every_row, asked.words) == ("best", True, ["out/run", "seed=1"])
