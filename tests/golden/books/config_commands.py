"""The commands of the documentation and of other projects, their flags and keys, and the configs of them, as in
`configs.py`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from commands import COMPOSED, covey_words, make_workspace, request_of
from config_cases import compose_case, facts, in_place, name_of, only_once, read_case, told, wandb_there
from covey.config import compose
from covey.config.aliases.aliases import table
from seed_commands import FLAGS, TRAIN, programs, translated

ROOT = Path(__file__).resolve().parents[3]
LISTED = ROOT / "tests" / "golden" / "configs.yaml"
PAGES = [ROOT / "README.md", ROOT / "recipes" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SLOW = True


def documented() -> Iterator[list[str]]:
    """The words of every `covey` command on a page that composes a config, in a block of shell or in a table."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            yield from map(covey_words, block.splitlines())
        for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
            for line in re.findall(r"`(covey [^`]+)`", re.sub(r"=(FILE|F)\b", "=zero3", row)):
                yield [word for word in covey_words(line) if word != "…"]


def cases(folder: Path) -> dict[str, Any]:
    with wandb_there(folder / "site"), in_place({}, folder / "work"):
        return only_once(recorded())


def recorded() -> Iterator[tuple[str, Any]]:
    base = facts(compose())
    make_workspace(ROOT, Path.cwd())
    for words in documented():
        if words and words[0] in COMPOSED:
            yield f"covey {shlex.join(words)}", told(lambda words=words: request_of(words).compose(), base)
    replaced = programs(ROOT / "docs" / "coming_from.md")
    for command in TRAIN:
        for more in ([], [f"+preset={command.preset}"]):
            words = [*translated(command.line, replaced), *more]
            yield " ".join([command.line, *more]), told(lambda words=words: request_of(words).compose(), base)
    flags = yaml.safe_load(LISTED.read_text(encoding="utf-8"))["flags"]
    words = [word for line in flags for word in read_case(line)["words"]]
    unnamed = table().keys() - {word.lstrip("-+").partition("=")[0] for word in words}
    assert not unnamed, f"configs.yaml has no flag {sorted(unnamed)}"
    for case in map(read_case, [*flags, *(line for _, line, _ in FLAGS)]):
        yield name_of(case), told(partial(compose_case, case), base)
