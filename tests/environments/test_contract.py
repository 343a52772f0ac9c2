"""TRL's contract: what counts as a tool, what a schema needs, and what of a row `reset` gets."""

from __future__ import annotations

from typing import Any

import pytest

from covey.environments.contract import (
    check_environment,
    check_tool,
    has_reward,
    missing_columns,
    reset_arguments,
    tool_methods,
)
from covey.errors import EnvironmentSetupError


class Game:
    """A class as TRL's documentation has them."""

    limit = 3

    def reset(self, target: int, level: int = 1, **row: Any) -> str:
        return f"{target}, {level}, {row}"

    def guess(self, number: int, why: str = "") -> str:
        """
        Guess.

        Args:
            number: The guess.
            why: The reason.
        """
        return f"{number}{why}"

    @staticmethod
    def roll(sides: int) -> int:
        """
        Roll.

        Args:
            sides: Of the die.
        """
        return sides

    @classmethod
    def not_a_function_of_the_class(cls) -> None: ...

    @property
    def state(self) -> int:
        raise AssertionError("a property is not read")

    def _helper(self) -> None: ...

    def get_reward(self) -> float:
        return 1.0


def test_tools_are_those_that_trl_finds() -> None:
    assert tool_methods(Game) == ["guess", "roll"]
    assert has_reward(Game)
    assert not has_reward(type("Tools", (), {"reset": Game.reset}))
    check_environment(Game(), "environment.factory: game.py:Game")


def test_trl_finds_the_same_tools(tmp_path: Any) -> None:
    import inspect

    from trl.trainer import grpo_trainer

    text = inspect.getsource(grpo_trainer)
    assert 'if member_name not in ("reset", "get_reward") and not member_name.startswith("_")' in text
    assert "inspect.getmembers(type(environment), predicate=inspect.isfunction)" in text


def test_a_schema_is_transformers_own() -> None:
    from transformers.utils import get_json_schema

    assert check_tool(Game().guess, "x") == get_json_schema(Game().guess)


class Faulty(Game):
    def untyped(self, a, b: int):  # type: ignore[no-untyped-def]
        """Something."""

    def undocumented(self) -> int:
        return 1

    def unknown(self, a: Game) -> int:
        """
        Something.

        Args:
            a: A game.
        """
        return 1


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(EnvironmentSetupError) as caught:
        check_environment(Faulty(), "environment.factory: game.py:Faulty")
    text = str(caught.value)
    assert text.startswith(
        "environment.factory: game.py:Faulty: undocumented has no docstring; unknown has no schema: "
    )
    assert "untyped has no type hint for a; untyped does not describe a, b in its docstring" in text
    assert "guess" not in text
    assert "\n" not in text
    with pytest.raises(EnvironmentSetupError, match=r"environment\.tools: f: has no docstring"):
        check_tool(Faulty().undocumented, "environment.tools: f")


def test_methods_that_must_be_there() -> None:
    with pytest.raises(EnvironmentSetupError, match="Bare has no method reset"):
        check_environment(type("Bare", (), {})(), "x")

    def get_reward(self: Any, completion: str) -> float:
        return 1.0

    needy = type("Needy", (Game,), {"get_reward": get_reward})
    with pytest.raises(EnvironmentSetupError, match=r"get_reward of Needy .*needs completion"):
        check_environment(needy(), "x")


def test_reset_gets_the_columns_of_the_file() -> None:
    row = {"prompt": [{"role": "user", "content": "hi"}], "original_prompt": "hi", "target": 3, "original_prompts": [1]}
    assert reset_arguments(Game().reset, row) == {"target": 3, "prompt": "hi", "prompts": [1]}

    def only(target: int, /, level: int, *, prompt: Any = None) -> None: ...

    assert reset_arguments(only, row) == {"prompt": "hi"}
    assert reset_arguments(lambda: None, row) == {}
    assert missing_columns(Game().reset, ["level"]) == ["target"]
    assert missing_columns(only, ["original_level", "target"]) == ["level"]
    assert missing_columns(lambda prompt: None, ["original_prompt"]) == []
