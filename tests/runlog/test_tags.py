"""The user's tags and notes of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.errors import ConfigError, RunDirectoryError
from covey.runlog import RunDirectory
from covey.runlog.notes import MOST_TAGS, NOTE_LENGTH, TAG_LENGTH, Tags, read_tags, write_tags


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_tags(tmp_path) == Tags()
    noted = Tags.of([" base line ", "base  line", "", "β=0"], " good,\nbut long \ud800")
    assert noted == Tags(("base line", "β=0"), "good,\nbut long ?")
    write_tags(tmp_path, noted)
    assert read_tags(tmp_path) == noted
    write_tags(tmp_path, Tags())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tags", "note"),
    [
        ("base", ""),
        ([1], ""),
        (None, ""),
        (["a" * (TAG_LENGTH + 1)], ""),
        (["\x1b[31mred"], ""),
        ([str(number) for number in range(MOST_TAGS + 1)], ""),
        ([], None),
        ([], "a" * (NOTE_LENGTH + 1)),
    ],
)
def test_other_things_are_refused(tags: Any, note: Any) -> None:
    with pytest.raises(ConfigError, match=r"of a run|A run has"):
        Tags.of(tags, note)


@pytest.mark.parametrize("text", ["", "[]", '{"tags": []}', '{"tags": [1], "note": ""}', "\xff"])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    RunDirectory(tmp_path).tags.write_text(text, encoding="latin-1")
    with pytest.raises(RunDirectoryError, match=r"tags.json does not hold tags and a note"):
        read_tags(tmp_path)
    write_tags(tmp_path, Tags(("new",)))
    assert read_tags(tmp_path).tags == ("new",)


def test_a_new_run_in_the_same_folder_keeps_them(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.config.write_text("{}")
    write_tags(tmp_path, Tags((), "mine"))
    run.clear()
    assert read_tags(tmp_path).note == "mine"
