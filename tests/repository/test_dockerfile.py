"""The Dockerfile, as far as it can be checked without building it: what it copies, installs and starts is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def instructions(root: Path) -> list[tuple[str, str]]:
    """Every instruction with its arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (root / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


@pytest.fixture
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_what_is_copied_is_there_and_not_ignored(root: Path, instructions: list[tuple[str, str]]) -> None:
    kept = {line[1:] for line in (root / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    copied = {source for name, words in instructions if name == "COPY" for source in words.split()[:-1]}
    assert copied == kept
    assert all((root / source).exists() for source in copied)


def test_what_the_package_is_built_from_is_copied(instructions: list[tuple[str, str]], project: dict[str, Any]) -> None:
    copied = {source for name, words in instructions if name == "COPY" for source in words.split()[:-1]}
    assert {"pyproject.toml", "src", project["readme"], *project["license-files"]} <= copied


def test_it_starts_the_command_on_a_tested_python(instructions: list[tuple[str, str]], project: dict[str, Any]) -> None:
    found = dict(instructions)
    python = re.fullmatch(r"python:([\d.]+)-slim", found["FROM"])
    assert python is not None
    assert f"Programming Language :: Python :: {python[1]}" in project["classifiers"]
    assert found["ENTRYPOINT"] == '["covey"]'
    assert "covey" in project["scripts"]
    assert found["USER"].split(":")[0] not in ("root", "0")
    (install,) = (words for name, words in instructions if name == "RUN" and "pip install" in words)
    assert "--constraint constraints.txt" in install
