"""Environments and tools by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.config.groups.environment import ENVIRONMENTS, TOOLS, EnvironmentConfig
from covey.environments.contract import EnvironmentSource, load_environment, load_tool, sources_of
from covey.errors import EnvironmentSetupError

CODE = '''
class Game:
    def __init__(self, top: int = 10, *, name="x"):
        self.top = top
        if top < 0:
            raise ValueError("no such game")

    def reset(self, **row):
        return "go"

def make(top=2):
    return Game(top)

def tool(a: int) -> int:
    """Tool.

    Args:
        a: A number.
    """
    return a

number = 3
'''


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "game.py").write_text(CODE)
    return tmp_path / "game.py"


def test_every_built_in_name_leads_to_something() -> None:
    for name in ENVIRONMENTS:
        made = load_environment(EnvironmentSource(name))()
        assert hasattr(type(made), "reset")
    for name in TOOLS:
        assert load_tool(name).__name__ == name


def test_a_class_or_a_function_of_a_file(code: Path) -> None:
    source = EnvironmentSource(f"{code}:Game", {"top": 4})
    assert load_environment(source)().top == 4  # type: ignore[attr-defined]
    assert load_environment(EnvironmentSource(f"{code}:make"))().top == 2  # type: ignore[attr-defined]
    assert load_tool(f"{code}:tool")(3) == 3
    assert load_tool("math:gcd")(4, 6) == 2


def test_the_sources_of_a_config() -> None:
    config = EnvironmentConfig(factory={"a": "x.py:A", "b": {"factory": "y.py:B", "settings": {"k": 1}}})
    assert sources_of(config) == {
        "a": EnvironmentSource("x.py:A", {}, "environment.factory.a"),
        "b": EnvironmentSource("y.py:B", {"k": 1}, "environment.factory.b"),
    }
    single = EnvironmentConfig(factory="x.py:A", settings={"k": 2})
    assert sources_of(single) == {None: EnvironmentSource("x.py:A", {"k": 2}, "environment.factory")}
    assert sources_of(EnvironmentConfig(tools=("calculator",))) == {}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "Game",
            {"tap": 1},
            r"with environment.settings \(tap\): got an unexpected keyword argument 'tap'. It takes top",
        ),
        ("Game", {"top": -1}, r"game.py:Game cannot be made: ValueError: no such game"),
        ("Gane", {}, r"has no Gane; it has Game"),
        ("number", {}, r"cannot be called: it is of type int"),
    ],
)
def test_what_cannot_be_made(code: Path, name: str, settings: dict[str, int], message: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=message):
        load_environment(EnvironmentSource(f"{code}:{name}", settings))()


def test_what_is_no_tool(code: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match=r"is a class, and a tool is a function.*environment\.factory="):
        load_tool(f"{code}:Game")
    with pytest.raises(EnvironmentSetupError, match=r"names the file .*gone\.py, which does not exist"):
        load_tool("gone.py:tool")
