"""Tasks of reasoning-gym as training and held-out rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compose_config import from_words
from covey.answers import reasoning_gym
from covey.config import Config
from covey.data import load
from covey.errors import CoveyError, DataError


def compose(*words: str) -> Config:
    return from_words(*words).config


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of the library, in place of which ten questions come back in turn, as many as wanted."""
    found: list[Any] = []

    def draw(task: str, settings: Any, seed: int, size: int, key: str) -> list[tuple[str, str | None, str]]:
        found.append((task, dict(settings), seed, size))
        start = seed % 10
        return [(f"question {(start + i) % 10}", f"{i}" if i % 2 else None, f"text {i}") for i in range(size)]

    monkeypatch.setattr(reasoning_gym, "draw", draw)
    return found


def test_rows(drawn: list[Any]) -> None:
    config = compose(
        "dataset=reasoning_gym",
        "dataset.task=puzzle",
        "dataset.settings={level: 1, size: 2}",
        "dataset.hard_settings={level: 3}",
        "dataset.train_size=9",
        "dataset.test_size=3",
        "dataset.hard_size=2",
        "dataset.system_prompt=Be brief.",
    )
    data = load(config.dataset, seed=1)
    assert [(task, settings, size) for task, settings, _, size in drawn] == [
        ("puzzle", {"level": 1, "size": 2}, 3),
        ("puzzle", {"level": 3, "size": 2}, 2),
        ("puzzle", {"level": 1, "size": 2}, 9),
    ]
    assert len({seed for _, _, seed, _ in drawn}) == 3
    assert set(data.evaluation) == {"test", "hard"}
    row = data.evaluation["test"][1]
    assert row["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert row["answer"] == "1"
    assert row["reasoning_gym"] == "text 1"
    held_out = {row["prompt"][-1]["content"] for rows in data.evaluation.values() for row in rows}
    trained = {row["prompt"][-1]["content"] for row in data.train}
    assert trained
    assert not held_out & trained


def test_other_seeds_give_other_problems_and_the_same_seed_the_same(drawn: list[Any]) -> None:
    config = compose("dataset=reasoning_gym", "dataset.train_size=8", "dataset.test_size=2")
    for seed, held_out in ((1, 1), (1, 1), (2, 2), (1, 2)):
        load(replace(config.dataset, seed=held_out), seed=seed)
    seeds = [call[2] for call in drawn]
    assert seeds[:2] == seeds[2:4]
    assert not set(seeds[:2]) & set(seeds[4:6])
    assert seeds[6:] == [seeds[4], seeds[1]]  # the test problems of one, the training problems of the other


def test_a_task_with_few_different_problems(drawn: list[Any]) -> None:
    config = compose("dataset=reasoning_gym", "dataset.train_size=8", "dataset.test_size=50")
    with pytest.raises(DataError, match="so few different problems"):
        load(config.dataset, seed=1)
    config = compose("dataset=reasoning_gym", "dataset.train_size=8", "dataset.test_size=0")
    assert load(config.dataset, seed=1).evaluation == {}


def test_the_dataset_brings_its_reward() -> None:
    assert compose("dataset=reasoning_gym").rewards.funcs == ("reasoning_gym", "format")
    assert compose("dataset=reasoning_gym", "rewards=math").rewards.funcs == ("accuracy", "format")
    assert compose().rewards.funcs == ("exact_match", "format")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dataset.settings={level: 1}",), "is for the tasks of a library"),
        (("dataset=reasoning_gym", "dataset.task=null"), "needs one of its tasks"),
        (("dataset.library=gym",), "must be reasoning_gym"),
        (("dataset.task=sums",), "must be one of arithmetic, countdown"),
    ],
)
def test_what_does_not_fit(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(CoveyError, match=said):
        compose(*words)
