"""The scripts and style sheets of the pages hold nothing that no page uses."""

from __future__ import annotations

import re
from pathlib import Path

import covey
from covey.runlog.notes import FAILED, FINISHED
from covey.view.runs import EVALUATING, PREPARING, STOPPED, TRAINING

SOURCE = Path(covey.__file__).parent
STATUSES = (FAILED, FINISHED, EVALUATING, PREPARING, STOPPED, TRAINING)
ASSETS = [file for package in ("report", "view") for file in (SOURCE / package / "assets").iterdir()]


def _texts(*kinds: str) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in ASSETS if file.suffix in kinds}


def test_every_class_and_identity_of_the_style_sheets_is_on_a_page() -> None:
    used = set(re.findall(r"[\w-]+", " ".join([*_texts(".js", ".html").values(), *STATUSES])))
    for name, sheet in _texts(".css").items():
        selectors = re.sub(r"\{[^{}]*\}", " ", sheet)
        found = set(re.findall(r"[.#]([a-z][\w-]*)", selectors))
        assert found <= used, (name, found - used)
        variables = set(re.findall(r"(--[\w-]+):", sheet))
        assert variables <= set(re.findall(r"var\((--[\w-]+)\)", "".join(_texts(".css", ".js", ".html").values()))) | {
            f"--c{number}"
            for number in range(8)  # colours of curves, by their number
        }


def test_every_part_that_scripts_share_is_used_by_another() -> None:
    scripts = _texts(".js")
    for name, script in scripts.items():
        for shared in re.findall(r"(?:return|Object\.assign\(covey\.\w+,) \{ ([\w, ]+) \}\)?;\n(?:\}\)|\n)", script):
            others = " ".join(text for other, text in scripts.items() if other != name)
            taken = re.findall(r"const \{ ([\w, ]+) \} = covey", others)
            used = {*", ".join(taken).split(", "), *re.findall(r"covey(?:\.\w+)?\.(\w+)", others)}
            assert set(shared.split(", ")) <= used, (name, set(shared.split(", ")) - used)
