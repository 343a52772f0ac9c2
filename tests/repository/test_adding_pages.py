"""The pages about adding something to Covey, and about environments, executed from top to bottom as a reader would.

A Python block that begins with `# NAME.py` is that file; other Python blocks and the commands marked `<!-- run: … -->`
run, the commands with small sizes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from commands import TINY, covey_words
from covey.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"(<!-- run: [\w-]+ -->\n)?```(python|bash)\n(.*?)```", re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["adding_an_engine", "adding_an_objective", "adding_a_grader", "environments"])
def test_the_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60 or not page.startswith("adding")
    done, space = 0, {"__name__": page}
    for marked, kind, block in _BLOCK.findall(text):
        if kind == "python" and (named := _FILE.match(block)):
            (tmp_path / named[1]).write_text(block, encoding="utf-8")
        elif kind == "python":
            capsys.readouterr()
            exec(compile(block, f"{page}.md", "exec"), space)
            assert capsys.readouterr().out.strip()
            done += 1
        elif marked:
            for words in filter(None, map(covey_words, block.splitlines())):
                assert main([*words, *(TINY if words[0] == "train" else ())]) == 0, words
                done += 1
    assert done >= 2
