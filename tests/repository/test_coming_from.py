"""docs/coming_from.md: its commands exist, here and in the other projects."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import COMPOSED, check_command, covey_words, make_workspace
from covey.config.aliases.resolve import look_up
from seed_commands import DEFAULTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coming_from.md"

THEIR_FILES = {
    "From TRL": {"zero3.yaml", "train.py", "r.yaml"},
    "From open-r1": {"src/open_r1/grpo.py", "recipes/accelerate_configs/zero3.yaml", "slurm/train.slurm"},
    "From xDAN-Openr1-fire": {"src/open_r1/grpo.py", "configs/zero3.yaml"},
    "From MaxEnt-GRPO": {"training.sh", "src/grpo.py"},
    "From Agent-Tunix": {"run_training.py", "evaluate.py"},
    "From RLVR vocabulary expansion": {"grpo_train.py", "slurm/train_baseline.sh", "slurm/train_reasoning.sh"},
}
"""The programs and files that a section may name: they are in that project's repository or in its documents (seen in
November 2026; for xDAN its scripts name `configs/zero3.yaml`)."""
PLACEHOLDERS = {
    **{
        "FILE": "zero3",
        "launch.accelerate=FILE": "launch.accelerate=zero3",
        "launch.accelerate=F": "launch.accelerate=zero3",
    },
    **{"M": "some/model", "RUN": "out/my_run", "FOLDER": "folder"},
}


def rows() -> Iterator[tuple[str, str, str]]:
    """The rows of the page's tables: section, before, now."""
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        for before, now in re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]:
            yield section.partition("\n")[0], before, now


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


OURS = sorted({code for _, _, now in rows() for code in codes(now) if covey_words(code)})


def test_there_are_commands_for_every_project() -> None:
    assert len(OURS) > 12
    assert {section for section, _, _ in rows()} >= THEIR_FILES.keys()


@pytest.mark.parametrize("command", OURS)
def test_a_command_of_the_page_exists(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_workspace(ROOT, tmp_path)
    monkeypatch.chdir(tmp_path)
    line = re.sub(r"=(FILE|F)\b", "=zero3", command)
    words = [PLACEHOLDERS.get(word, word) for word in covey_words(line)]
    if words[0] in COMPOSED:
        check_command([word for word in words if word != "…"], command)
    else:
        check_command(words, command)


@pytest.mark.parametrize("section", THEIR_FILES)
def test_their_programs_are_theirs(section: str) -> None:
    named: set[str] = set()
    for place, before, _ in rows():
        if place == section:
            words = [word for code in codes(before) for word in shlex.split(code.replace("'", ""))]
            named |= {word for word in words if re.search(r"\.(py|sh|slurm|yaml)$", word) and "/X/" not in word}
    assert named <= THEIR_FILES[section], named - THEIR_FILES[section]


def test_their_keys_are_known_here() -> None:
    """Every `key=value` and `key: value` of the left column."""
    for _, before, _ in rows():
        for code in codes(before):
            for word in shlex.split(code.replace("'", "")):
                name = re.match(r"([a-z_][\w.]*)(?:=|:$)", word)
                if name is None or name[1] in ("model", "experiment"):
                    continue
                assert look_up(name[1]) is not None, f"{code}: {name[1]}"


def test_every_preset_is_listed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    options = {file.stem for file in (ROOT / "src" / "covey" / "config" / "conf" / "preset").glob("*.yaml")}
    assert options > {*DEFAULTS}
    assert all(f"`{name}`" in text or f"preset={name}" in text for name in options)
