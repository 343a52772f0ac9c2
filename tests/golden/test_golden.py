"""What Covey does, as recorded: the cases of every book in `books/` equal its `NAME.json`, byte for byte.

A book is a file `books/NAME.py` with a function `cases(folder)`: the data of every case by its name, as JSON holds it,
made in an empty folder, which is the working directory. With `SLOW = True` it runs with the slow tests. Paths of this
machine are masked here; a book masks what else differs between two runs. `make golden` writes the files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from load_scripts import load_script

GOLDEN = Path(__file__).parent
NAMES = sorted(path.stem for path in (GOLDEN / "books").glob("*.py"))
OF_THIS_PLACE = ("COVEY_", "WORLD_SIZE", "RANK", "LOCAL_", "MASTER_", "SLURM_", "WANDB_", "TRACKIO_", "HF_TOKEN")
"""How the names of environment variables begin that would change what is recorded."""


BOOKS = {name: load_script(f"tests/golden/books/{name}.py") for name in NAMES}


def lines(cases: Mapping[str, Any], masks: Mapping[str, str]) -> dict[str, str]:
    """Each case as one line of JSON, with paths masked; what no editor shows well is escaped."""
    found = {}
    for name, data in sorted(cases.items()):
        shown = json.dumps({name: data}, sort_keys=True, ensure_ascii=False)[1:-1]
        shown = shown if shown.isprintable() else json.dumps({name: data}, sort_keys=True)[1:-1]
        for path in sorted(masks, key=len, reverse=True):
            shown = shown.replace(path, masks[path])
        found[name] = shown
    return found


def changes(before: str, found: Mapping[str, str]) -> list[str]:
    """The cases that differ from a file's text: each as recorded (-) and as found (+), from shortly before the first
    difference."""
    recorded = {next(iter(json.loads(f"{{{line}}}"))): line for line in before.replace(",\n", "\n").split("\n")[1:-2]}
    told = []
    for name in sorted(recorded.keys() | found.keys()):
        old, new = recorded.get(name, ""), found.get(name, "")
        if old != new:
            same = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
            at = max(same - 80, 0)
            told.append(
                "\n".join([name, *(f"  {sign} {text[at : at + 300]}" for sign, text in (("-", old), ("+", new)))])
            )
    return told


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * getattr(BOOKS[n], "SLOW", False)) for n in NAMES]
)
def test_behaviour_is_as_recorded(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in os.environ:
        if variable.startswith(OF_THIS_PLACE) and variable != "COVEY_GOLDEN":
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    masks = {str(tmp_path): "/folder", str(root): "/repository", sys.prefix: "/python"}
    found = lines(BOOKS[name].cases(tmp_path), masks)
    text = "{\n" + ",\n".join(found.values()) + "\n}\n"
    path = GOLDEN / f"{name}.json"
    before = path.read_text(encoding="utf-8") if path.exists() else "{\n}\n"
    told = changes(before, found)
    if os.environ.get("COVEY_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
        with capsys.disabled():
            print(f"\n{path.name}: {len(told)} of {len(found)} cases changed", *told[:20], sep="\n")
        return
    if before != text:  # an assertion would compare the whole files again
        pytest.fail("\n".join([f"{len(told)} cases differ. If this is meant: make golden", *told[:5]]), pytrace=False)


def test_no_file_is_without_its_book_and_all_are_small() -> None:
    files = sorted(GOLDEN.glob("*.json"))
    assert [path.stem for path in files] == NAMES
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if "__pycache__" not in path.parts) < 2_000_000


def test_a_difference_is_told_by_its_case() -> None:
    masks = {"/tmp/a": "/folder", "/tmp": "/other"}
    recorded = lines({"b": [1.5, "/tmp/a/x"], "a": "ä", "gone": None}, masks)
    assert recorded == {"a": '"a": "ä"', "b": '"b": [1.5, "/folder/x"]', "gone": '"gone": null'}
    text = "{\n" + ",\n".join(recorded.values()) + "\n}\n"
    assert changes(text, recorded) == []
    found = lines({"b": [2.5, "/tmp/a/x"], "a": "ä", "new": "\u2028"}, masks)
    assert changes(text, found) == [
        'b\n  - "b": [1.5, "/folder/x"]\n  + "b": [2.5, "/folder/x"]',
        'gone\n  - "gone": null\n  + ',
        'new\n  - \n  + "new": "\\u2028"',
    ]
    assert changes("{\n}\n", {}) == []
