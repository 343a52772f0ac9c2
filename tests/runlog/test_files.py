"""Reading and writing files that other programs may have touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.runlog.files import MOST_BYTES, read_json, rename, write_atomically


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, MOST_BYTES + 1)  # without taking that much of the disk


UNREADABLE: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "a pipe": (os.mkfifo, OSError, "not a plain file"),
    "a folder": (Path.mkdir, OSError, "not a plain file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), OSError, "not a plain file"),
    "nothing": (lambda path: None, FileNotFoundError, "No such file"),
    "a deep file": (lambda path: path.write_text("[" * 100_000), ValueError, "nested too deeply"),
    "a large file": (large, ValueError, "larger than 100,000,000 bytes"),
    "half a file": (lambda path: path.write_text('{"a": '), ValueError, "Expecting value"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_cannot_be_read_is_an_error_at_once(what: str, tmp_path: Path) -> None:
    make, kind, reason = UNREADABLE[what]
    make(tmp_path / "file.json")
    with pytest.raises(kind, match=reason):
        read_json(tmp_path / "file.json")


def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(mine)
    write_atomically(tmp_path / "file", "new")
    assert (mine.read_text(), (tmp_path / "file").read_text()) == ("mine", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_weights_have_the_modes_that_the_umask_gives(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        (tmp_path / "part" / "inner").mkdir(parents=True)
        for name in ("part/model.safetensors", "part/inner/adapter_model.safetensors"):
            (tmp_path / name).touch(0o600)  # as safetensors does
        rename(tmp_path / "part", tmp_path / "whole")
    finally:
        os.umask(before)
    assert [file.stat().st_mode & 0o777 for file in (tmp_path / "whole").rglob("*.safetensors")] == [mode, mode]
