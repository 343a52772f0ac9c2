"""A stand-in for the library reasoning-gym where that is not installed: its registry, and tasks scored by its rules.

`tests/answers/test_reasoning_gym.py` runs the same tests on it and on the library.
"""

from __future__ import annotations

import importlib
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

_PARTS = {
    "__init__": "create_dataset",
    "composite": "DatasetSpec",
    "factory": "DATASETS",
}
"""The modules of the package, with the name that Covey reads there."""


@dataclass
class Config:
    """What the settings of all tasks have."""

    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        assert self.size > 0, "size must be positive"


class Task:
    """A task whose answer is scored by its text."""

    def __init__(self, config: Any) -> None:
        self.config, self.size = config, config.size
        self.seed = random.randrange(2**32) if config.seed is None else config.seed

    def __getitem__(self, place: int) -> dict[str, Any]:
        question, answer = self.ask(random.Random(self.seed + place))
        name = next(name for name, (kind, _) in DATASETS.items() if kind is type(self))
        metadata = {"source_dataset": name, "source_index": place, "difficulty": {"level": (1, 2)}}
        return {"question": question, "answer": answer, "metadata": metadata}

    def ask(self, draw: random.Random) -> tuple[str, str]:
        raise NotImplementedError

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """1 for the expected text; for a longer one that holds it, its share."""
        expected = entry["answer"]
        return len(expected) / len(answer) if answer and expected in answer else 0.0


@dataclass
class SumConfig(Config):
    min_terms: int = 2
    max_terms: int = 6

    def validate(self) -> None:
        assert self.max_terms >= self.min_terms > 0, "max_terms must be >= min_terms"


class Sums(Task):
    def ask(self, draw: random.Random) -> tuple[str, str]:
        terms = [draw.randrange(1000) for _ in range(draw.randint(self.config.min_terms, self.config.max_terms))]
        return " + ".join(map(str, terms)), str(sum(terms))


@dataclass
class LegConfig(Config):
    min_animals: int = 3
    max_animals: int = 10


class Legs(Task):
    """Prints while it asks, as some of the library's tasks do."""

    def ask(self, draw: random.Random) -> tuple[str, str]:
        print("drawing dogs")
        dogs = draw.randint(self.config.min_animals, self.config.max_animals)
        return f"How many legs have {dogs} dogs?", str(4 * dogs)


@dataclass
class SpellConfig(Config):
    min_word_len: int = 3
    max_word_len: int = 10


class Spelling(Task):
    WORDS = ("hello", "Paris", "infinity")

    def ask(self, draw: random.Random) -> tuple[str, str]:
        word = draw.choice(
            [one for one in self.WORDS if self.config.min_word_len <= len(one) <= self.config.max_word_len]
        )
        return f"Spell backward: {word}", word[::-1]

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """The share of letters in their place, of any case."""
        expected = entry["answer"].lower()
        if answer is None or answer.lower() == expected:
            return float(answer is not None)
        alike = sum(one == other for one, other in zip(answer.lower(), expected, strict=False))
        return 0.8 if alike == len(expected) else alike / len(expected)


class Halting(Task):
    def ask(self, draw: random.Random) -> tuple[str, str]:
        return "Does it halt?", str(draw.random() < 0.5)

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """The library's mistake: any text is as true as the expected one, also where that is `False`."""
        return float(answer is not None and bool(answer) == bool(entry["answer"]))


class Spiral(Task):
    def ask(self, draw: random.Random) -> tuple[str, str]:
        a, b, c, d = (str(draw.randrange(10)) for _ in range(4))
        return f"In spiral order: {a} {b} / {d} {c}", f"{a} {b} {c} {d}"

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """Part of it for a list of Python, which it evaluates."""
        expected = entry["answer"]
        if answer == expected:
            return 1.0
        try:
            return 0.1 if " ".join(map(str, eval(str(answer)))) == expected else 0.0
        except Exception:
            return 0.0


@dataclass
class DatasetSpec:
    name: str
    weight: float
    config: dict[str, Any]


@dataclass
class CompositeConfig(Config):
    datasets: list[DatasetSpec] = field(default_factory=list)

    def validate(self) -> None:
        assert self.datasets, "Must specify at least one dataset"


class Composite(Task):
    """Several tasks, each problem of one that is drawn by weight."""

    def __init__(self, config: CompositeConfig) -> None:
        super().__init__(config)
        self.datasets = {
            spec.name: create_dataset(spec.name, **{"seed": self.seed + number, "size": self.size, **spec.config})
            for number, spec in enumerate(config.datasets, start=1)
        }

    def __getitem__(self, place: int) -> dict[str, Any]:
        weights = [spec.weight for spec in self.config.datasets]
        (name,) = random.Random(self.seed + place).choices([*self.datasets], weights)
        found: dict[str, Any] = self.datasets[name][place]
        return found

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        score: float = self.datasets[entry["metadata"]["source_dataset"]].score_answer(answer, entry)
        return score


DATASETS: dict[str, tuple[type[Task], type[Config]]] = {
    "chain_sum": (Sums, SumConfig),
    "composite": (Composite, CompositeConfig),
    "game_of_life_halting": (Halting, Config),
    "leg_counting": (Legs, LegConfig),
    "spell_backward": (Spelling, SpellConfig),
    "spiral_matrix": (Spiral, Config),
}


def create_dataset(name: str, **settings: Any) -> Any:
    kind, config_kind = DATASETS[name]
    config = config_kind(**settings)
    config.validate()
    return kind(config)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package in a folder, and import it from there until the end of the test, in programs that it starts
    with its own search path too."""
    package = folder / "reasoning_gym"
    package.mkdir()
    for module, name in _PARTS.items():
        (package / f"{module}.py").write_text(f"from {__name__} import {name}\n", encoding="utf-8")
    for name in ("reasoning_gym", "reasoning_gym.composite", "reasoning_gym.factory"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # so that the end of the test removes it
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
