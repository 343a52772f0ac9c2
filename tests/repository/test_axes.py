"""The letters of tensor axes have one meaning each: names and shapes in the source use the table of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^ *\| `(\w)` \| ", re.MULTILINE)
SUFFIX = re.compile(r"[a-z]\w*_([0-9a-z]{0,2}[A-Z][0-9A-Za-z]{0,3})")
SHAPE = re.compile(r"`\[([^`\]]*[A-Z][^`\]]*)\]`")


def legend() -> list[str]:
    return ROW.findall((ROOT / "CONTRIBUTING.md").read_text())


def axes(source: str) -> Iterator[tuple[str, str]]:
    """Each name with a suffix of axes, and each shape in backticks, with its letters."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                if found := SUFFIX.fullmatch(name.lstrip("_")):
                    yield name, re.sub(r"\d", "", found[1])
    for shape in SHAPE.findall(source):
        yield f"[{shape}]", "".join(re.findall(r"\b[A-Za-z]\b", shape))


def test_every_axis_in_the_source_is_in_the_legend() -> None:
    letters = set(legend())
    files = [file for folder in ("src", "benchmarks", "studies") for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [(file, name, used) for file in files for name, used in axes(file.read_text())]
    assert len(found) > 500
    unknown = {f"{file.relative_to(ROOT)}: {name}" for file, name, used in found if not set(used) <= letters}
    assert not unknown


def test_every_letter_has_one_row() -> None:
    letters = legend()
    assert sorted(letters) == sorted(set(letters))
    assert {"P", "G", "B", "L", "T", "V", "F", "N", "K"} <= set(letters)


@pytest.mark.parametrize(
    ("source", "letters"),
    [
        ("rewards_PG = 1", ["PG"]),
        ("self._loss_logps_BT", ["BT"]),
        ("sums_1NH, query_bHgD", ["NH", "bHgD"]),
        ("def f(mask_XY): pass", ["XY"]),
        ("MAX_B, top_k, _MOST_SAMPLES, lora_alpha", []),
        ('"""`[B, L + T]` and `[states, V]`"""', ["BLT", "V"]),
    ],
)
def test_axes_are_read_from_names_and_shapes(source: str, letters: list[str]) -> None:
    assert [used for _, used in axes(source)] == letters
