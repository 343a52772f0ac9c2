"""Graders for worker processes, in a module that they import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from obedient_graders import GRADERS


@pytest.fixture(scope="module")
def graders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The module `GRADERS`, where worker processes find it."""
    folder = tmp_path_factory.mktemp("graders")
    (folder / "well_behaved.py").write_text(GRADERS, encoding="utf-8")
    sys.path.append(str(folder))
    yield folder / "well_behaved.py"
    sys.path.remove(str(folder))
