"""The environments of `games.py`, in a file, and a runner of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.environments.runner import EnvironmentRunner
from game_environments import GAMES, source


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("games") / "games.py"
    path.write_text(GAMES, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runner(games: Path) -> Iterator[EnvironmentRunner]:
    named = {"game": "Game", "scored": "Scored", "again": "Scored"}
    sources = {name: source(games, kind) for name, kind in named.items()}
    sources["game"] = source(games, "Game", top=7)
    with EnvironmentRunner(sources, [f"{games}:meet"], timeout=60.0) as made:
        yield made
