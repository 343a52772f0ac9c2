"""What tests of `covey view` in a browser share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import browser
from made_run import make_run, write_evaluation
from view_pages import view


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two comparable runs and one with episodes, of hostile names and texts."""
    folder = tmp_path_factory.mktemp("view")
    for seed, name in enumerate(("first", "second <b>")):
        root = make_run(folder / name, steps=20, seed=seed)
        write_evaluation(root, 20, [float(problem % 3 <= seed) for problem in range(30)])
    make_run(folder / "deep" / "episodes", steps=10, tools=True)
    return folder


@pytest.fixture(scope="module")
def address(made: Path) -> Iterator[str]:
    with view(made) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser(1400, 900) as started:
        yield started
