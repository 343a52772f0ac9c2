"""`dataset.seed` draws all that is held out and `seed` what is trained on, and whatever the two, no row is both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covey import data
from covey.answers import reasoning_gym
from covey.config import DatasetConfig, DifficultyConfig
from covey.config.groups.dataset import MixtureConfig
from covey.config.groups.environment import EnvironmentConfig
from covey.errors import DataError
from data_files import question, write_jsonl

FEW = DifficultyConfig(min_digits=1, max_digits=2, operators=("+",))  # of which two seeds draw the same ones
ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(60)]
TEST_ROWS = [{"question": f"What is {n} - {n}?", "answer": "0"} for n in range(30)]


def of_file(folder: Path) -> DatasetConfig:
    path = str(write_jsonl(folder / "rows.jsonl", ROWS))
    return DatasetConfig(path=path, test_size=9, validation_fraction=0.25, train_fraction=0.5)


def of_file_with_fractions(folder: Path) -> DatasetConfig:
    return replace(of_file(folder), test_fraction=0.3)


def of_two_files(folder: Path) -> DatasetConfig:
    return replace(of_file(folder), test_path=str(write_jsonl(folder / "test.jsonl", TEST_ROWS)))


def of_arithmetic(folder: Path) -> DatasetConfig:
    return DatasetConfig(
        task="arithmetic", difficulty=FEW, train_size=400, test_size=40, hard_size=20, validation_fraction=0.2
    )


def of_countdown(folder: Path) -> DatasetConfig:
    few = DifficultyConfig(min_digits=1, max_digits=1, min_operands=3, max_operands=3)
    return DatasetConfig(
        task="countdown", difficulty=few, train_size=200, test_size=9, single_size=4, validation_fraction=0.2
    )


def of_graph_coloring(folder: Path) -> DatasetConfig:
    return DatasetConfig(task="graph_coloring", train_size=30, test_size=9, single_size=2, validation_fraction=0.2)


def of_a_library(folder: Path) -> DatasetConfig:
    return DatasetConfig(
        task="made", library="reasoning_gym", train_size=90, test_size=30, hard_size=20, validation_fraction=0.3
    )


def of_episodes(folder: Path) -> DatasetConfig:
    return DatasetConfig(train_size=40, test_size=9, validation_fraction=0.25)


def of_a_mixture(folder: Path) -> DatasetConfig:
    files = [write_jsonl(folder / "a.jsonl", ROWS), write_jsonl(folder / "b.jsonl", TEST_ROWS)]
    sets = [{"path": str(file), "weight": weight} for file, weight in zip(files, (1, 3), strict=True)]
    mixture = MixtureConfig(datasets=sets, seed=5)
    return DatasetConfig(mixture=mixture, test_size=9, validation_fraction=0.25, train_fraction=0.5)


KINDS = [value for name, value in list(globals().items()) if name.startswith("of_")]


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the library, questions out of 200 that overlap from seed to seed, some of them twice."""

    def draw(task: str, settings: Any, seed: int, size: int, key: str) -> list[tuple[str, str | None, str]]:
        return [(f"question {(seed + i * i) % 200}", str(i), "{}") for i in range(size)]

    monkeypatch.setattr(reasoning_gym, "draw", draw)


def sets_of(config: DatasetConfig, seed: int, held_out: int) -> dict[str, list[str]]:
    """The questions of every set."""
    environment = EnvironmentConfig() if config.has_source else EnvironmentConfig(factory="game.py:Game")
    loaded = data.load(replace(config, seed=held_out), seed, answer_for=None, environment=environment)
    sets = {"train": loaded.train, **loaded.evaluation}
    asked: Callable[[Any], str] = question if config.has_source else lambda row: str(row["seed"])
    return {name: [asked(row) for row in rows] for name, rows in sets.items()}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_runs_of_other_seeds_meet_the_same_held_out_problems(
    kind: Callable[[Path], DatasetConfig], tmp_path: Path
) -> None:
    config = kind(tmp_path)
    found = {pair: sets_of(config, *pair) for pair in ((0, 0), (3, 0), (7, 0), (0, 3), (3, 3), (5, 2))}
    for sets in found.values():
        trained = set(sets.pop("train"))
        assert trained
        assert {"test", "validation"} <= sets.keys()
        for held_out in sets.values():
            assert held_out
            assert not trained & set(held_out)
    assert found[0, 0] == found[3, 0] == found[7, 0]
    assert found[0, 3] == found[3, 3]
    for name in found[0, 0]:
        drawn_with_its_own = config.mixture.datasets and name == "test"
        assert (found[0, 0][name] == found[0, 3][name]) == bool(drawn_with_its_own)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_seed_draws_what_is_trained_on(kind: Callable[[Path], DatasetConfig], tmp_path: Path) -> None:
    config = kind(tmp_path)
    one, again, other = (sets_of(config, seed, 0)["train"] for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_a_task_whose_training_problems_are_all_held_out() -> None:
    tiny = DifficultyConfig(min_digits=1, max_digits=1, operators=("+",))
    config = DatasetConfig(task="arithmetic", difficulty=tiny, train_size=4000, test_size=0, validation_fraction=0.5)
    with pytest.raises(DataError, match=r"^All training problems of the task arithmetic are held out \(validation\)"):
        data.load(config, 1)
