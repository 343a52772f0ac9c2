"""What the documentation once named keeps working: every import path and every command.

`documented_paths.txt` lists those of README and docs/ at commit 3cba0ab, each with the page that has it. Names are
imported, commands parsed and their configs composed; nothing runs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from architecture import Tree
from commands import check_command, covey_words, make_workspace
from covey.cli.main import parse
from covey.former_paths import current

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
LINES = (ROOT / "tests" / "support" / "documented_paths.txt").read_text(encoding="utf-8").splitlines()
ENTRIES = sorted({line.partition("\t")[0] for line in LINES})
IMPORTS = [entry.removeprefix("import ") for entry in ENTRIES if entry.startswith("import ")]
COVEY = [entry for entry in ENTRIES if covey_words(entry)]
OTHERS = [entry for entry in ENTRIES if entry not in COVEY and not entry.startswith("import ")]


def test_the_list_is_complete() -> None:
    assert (len(IMPORTS), len(COVEY), len(OTHERS)) == (49, 114, 19)


@pytest.mark.parametrize("path", IMPORTS)
def test_an_import_path_still_works(path: str) -> None:
    parts = path.split(".")
    modules = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    found: Any = None
    for name, module in zip(parts, modules, strict=True):
        try:
            found = getattr(found, name) if hasattr(found, name) else importlib.import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "vllm":
                raise
            names = parts[modules.index(module) + 1 :]  # no vLLM here: the sources say what is defined
            assert all(is_defined(Tree(ROOT / "src" / "covey"), current(module), name) for name in names)
            return


def is_defined(tree: Tree, module: str, name: str) -> bool:
    """Whether a module defines a name, or imports it from one of ours that does."""
    body = ast.parse(tree.files[module].read_text(encoding="utf-8")).body
    if any(getattr(node, "name", None) == name for node in body):
        return True
    sources = [found.module for found in tree.found[module] if found.name == name]
    return any(source in tree.files and is_defined(tree, source, name) for source in sources)


@pytest.mark.parametrize("line", COVEY)
def test_a_command_is_still_taken(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_workspace(ROOT, tmp_path)
    monkeypatch.chdir(tmp_path)
    words = covey_words(line)
    if len(words) > 1:
        check_command(words, line)
        return
    with pytest.raises(SystemExit) as end:  # named without arguments: it exists
        parse([*words, "--help"])
    assert end.value.code == 0


@pytest.mark.parametrize("line", OTHERS)
def test_a_target_or_a_script_is_still_there(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, what, *rest = shlex.split(line)
    if tool == "make":
        targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert what in targets
        return
    if what == "-m":
        spec = importlib.util.find_spec(rest.pop(0))
        assert spec is not None
        assert spec.origin is not None
        script = Path(spec.origin)
        assert '__name__ == "__main__"' in script.read_text(encoding="utf-8")
    else:
        script = ROOT / what
        assert script.is_file()
    if what == "training.sh":  # what follows goes to `covey launch`
        make_workspace(ROOT, tmp_path)
        monkeypatch.chdir(tmp_path)
        check_command(["launch", *rest], line)
