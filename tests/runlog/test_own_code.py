"""The user's own code in a run directory: copies, hashes, and what was edited."""

from __future__ import annotations

import hashlib
from pathlib import Path

from covey.importing import code_hashes, code_of
from covey.runlog.directory import RunDirectory
from covey.runlog.notes import edited, record_environment


def test_copies_hashes_and_edits(tmp_path: Path) -> None:
    file, run = tmp_path / "mine.py", RunDirectory(tmp_path / "run")
    file.write_text("def one(**kwargs): ...\ndef two(**kwargs): ...\n")
    names = [f"{file}:one", f"{file}:two", "covey.errors:CoveyError", "model:a/b", "exact_match", "/nowhere.py:f"]
    assert code_of(names).keys() == {*names[:3]}
    record_environment(run, names)
    known = run.code_hashes()
    first = hashlib.sha256(file.read_bytes()).hexdigest()
    assert known[names[0]] == known[names[1]] == first
    assert (run.code / f"mine-{first[:8]}.py").read_bytes() == file.read_bytes()
    assert len(list(run.code.iterdir())) == 2  # errors.py too
    assert edited(known, code_hashes(names)) == []
    file.write_text("def one(**kwargs): return 1\n")
    assert edited(known, code_hashes(names)) == names[:2]
    record_environment(run, names)
    assert sorted(path.name[:4] for path in run.code.iterdir()) == ["erro", "mine", "mine"]  # the old version stays
    assert edited(run.code_hashes(), code_hashes(names)) == []
    file.unlink()  # between two writes of an editor: no report
    assert edited(known, code_hashes(names)) == []
    run.clear()
    assert not run.code.exists()


def test_a_run_without_hashes_reports_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.touch()
    assert edited(RunDirectory(tmp_path / "run").code_hashes(), code_hashes([f"{file}:one"])) == []
