"""`examples/sums.py`: a complete environment in under 40 lines, by hand; `docs/environments.md` trains with it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from covey.environments.contract import EnvironmentSource, check_environment, load_environment, tool_methods
from covey.errors import EnvironmentSetupError

EXAMPLE = "examples/sums.py"


def made(root: Path, **settings: Any) -> Any:
    return load_environment(EnvironmentSource(f"{root / EXAMPLE}:Sums", settings))()


def test_it_is_short_and_keeps_the_contract(root: Path) -> None:
    assert len((root / EXAMPLE).read_text(encoding="utf-8").splitlines()) < 40
    environment = made(root)
    check_environment(environment, EXAMPLE)
    assert tool_methods(type(environment)) == ["calculator"]


def test_an_episode(root: Path) -> None:
    environment = made(root, digits=2)
    random.seed(3)
    question = environment.reset(seed=5)
    first, second = environment.numbers
    assert question == f"What is {first} + {second}?"
    assert 10 <= min(first, second) <= max(first, second) <= 99
    assert environment.get_reward() == 0.0
    assert environment.calculator("1 + 2") == "3"
    assert environment.get_reward() == 0.0
    assert environment.calculator(expression=f"{first} + {second}") == str(first + second)
    assert environment.get_reward() == 0.75
    for _ in range(5):
        environment.calculator("1+1")
    assert environment.get_reward() == 0.0
    with pytest.raises(ValueError, match="invalid literal"):
        environment.calculator("a + b")
    random.seed(3)
    assert environment.reset() == question
    assert environment.get_reward() == 0.0


def test_a_setting_that_it_does_not_have(root: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match="It takes digits"):
        made(root, size=3)
