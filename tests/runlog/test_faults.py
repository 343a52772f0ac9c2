"""A run directory on a file system that fails, or that somebody deletes."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from covey.errors import RunDirectoryError
from covey.runlog import RunDirectory, guard_disk, write_atomically
from covey.runlog.directory import temporary_folder
from covey.runlog.files import rename

FAULTS = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY]


def failing(monkeypatch: pytest.MonkeyPatch, code: int, times: int, *, after: bool = False) -> list[int]:
    """`os.replace` fails so often, before or after it has done its work; the list counts calls."""
    calls: list[int] = []
    real = os.replace

    def replace(old: Any, new: Any) -> None:
        calls.append(1)
        if len(calls) > times:
            return real(old, new)
        if after:
            real(old, new)
        raise OSError(code, os.strerror(code), str(old))

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return calls


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("code", FAULTS)
def test_a_rename_is_tried_once_more(code: int, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = failing(monkeypatch, code, 1, after=after)
    write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert len(calls) == 2


@pytest.mark.parametrize("code", FAULTS)
def test_a_lasting_fault_is_one_paragraph_and_keeps_the_old_file(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    calls = failing(monkeypatch, code, 9)
    with (
        pytest.raises(RunDirectoryError, match=r"(?s)Could not write.*Earlier files are intact") as raised,
        guard_disk("file", tmp_path),
    ):
        write_atomically(tmp_path / "file", "new")
    assert os.strerror(code) in str(raised.value)
    assert len(calls) == 2
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_other_errors_of_a_rename_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = failing(monkeypatch, errno.ENOSPC, 9)
    with pytest.raises(OSError, match="No space"):
        rename(tmp_path / "a", tmp_path / "b")
    assert len(calls) == 1


@pytest.mark.parametrize("code", FAULTS)
def test_every_write_under_the_lock_is_guarded(code: int, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="Could not write the run"), RunDirectory(tmp_path / "run").lock():
        raise OSError(code, os.strerror(code))


def begin_and_delete(run: RunDirectory, *, whole: bool) -> None:
    with run.lock():
        write_atomically(run.config, "a: 1")
        run.refuse_deleted()
        if whole:
            shutil.rmtree(run.root)
        else:  # `rm -rf run/*`, which keeps the lock
            run.config.unlink()
        write_atomically(run.summary, "{}")
        write_atomically(run.completions / "step.parquet", "half")
        run.refuse_deleted()


@pytest.mark.parametrize("whole", [True, False])
def test_a_deleted_run_leaves_nothing_in_a_new_ones_way(whole: bool, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=r"was deleted or moved while.*start again"):
        begin_and_delete(run, whole=whole)
    assert run.is_empty()
    assert not run.exists()


def test_a_missing_file_elsewhere_deletes_nothing_of_a_folder_without_config(tmp_path: Path) -> None:
    """As those of sweeps and evaluations are."""
    sweep = RunDirectory(tmp_path / "sweep")
    write_atomically(sweep.report, "the table")
    write_atomically(sweep.completions / "step.parquet", "rows")
    with pytest.raises(FileNotFoundError), sweep.lock():
        (tmp_path / "elsewhere").read_text()
    assert sweep.report.read_text() == "the table"
    assert (sweep.completions / "step.parquet").read_text() == "rows"


def lose_config(run: RunDirectory) -> None:
    with run.lock():
        write_atomically(run.metrics, "{}\n")
        run.refuse_deleted()
        run.config.read_text()


def test_a_run_without_its_config_keeps_its_records(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        lose_config(run)
    assert run.metrics.read_text() == "{}\n"


def test_temporary_folders_of_killed_processes_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, other = tmp_path / "covey-a-killed", tmp_path / "covey-a-of-somebody"
    killed.mkdir()
    other.mkdir()
    (killed / ".in-use").touch()
    with temporary_folder("covey-a-") as living, temporary_folder("covey-a-") as second:
        assert sorted(tmp_path.iterdir()) == sorted([living, second, other])
    assert list(tmp_path.iterdir()) == [other]
