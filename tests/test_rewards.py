"""The rewards by hand, in both forms that completions come in; and finding a function by its name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from covey import rewards
from covey.errors import RewardError

WHOLE = "<think>1+1</think><answer>2</answer>"
BARE = "<answer>2</answer>"
WRONG = "<think>1+1</think><answer>3</answer>"
COMPLETIONS = [WHOLE, BARE, WRONG, "2", ""]
PROMPTS = ["What is 1 + 1?"] * len(COMPLETIONS)


def as_messages(texts: list[str]) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


@pytest.fixture(autouse=True)
def _keep_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test imports from its own folder is forgotten again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.parametrize("completions", [COMPLETIONS, as_messages(COMPLETIONS)], ids=["text", "messages"])
def test_values(completions: list[object]) -> None:
    exact, form = rewards.load(["exact_match", "format"])
    columns = {"answer": ["2"] * 5, "question": ["…"] * 5, "trainer_state": None}
    assert exact(prompts=PROMPTS, completions=completions, **columns) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert form(prompts=PROMPTS, completions=completions, **columns) == [1.0, 0.0, 1.0, 0.0, 0.0]


def test_the_last_message_counts() -> None:
    form = rewards.get_reward("format")
    turns = [{"role": "assistant", "content": "Wait."}, {"role": "assistant", "content": WHOLE}]
    assert form(["p"] * 3, [turns, [*turns, {"role": "assistant", "content": None}], []]) == [1.0, 0.0, 0.0]


def test_answers_and_completions_must_be_of_one_number() -> None:
    with pytest.raises(ValueError, match="zip"):
        rewards.get_reward("exact_match")(["p"] * 2, ["a", "b"], answer=["1"])


@pytest.mark.parametrize("name", ["exact_match", "format"])
def test_a_function_is_called_by_its_registered_name(name: str) -> None:
    assert rewards.get_reward(name).__name__ == name
    assert rewards.get_reward(f"{name}_reward") is rewards.get_reward(name)


@pytest.mark.parametrize(
    ("name", "near"), [("exactmatch", "exact_match"), ("formt", "format"), ("format_rewrd", "format")]
)
def test_an_unknown_name_gets_the_nearest_and_all(name: str, near: str) -> None:
    with pytest.raises(RewardError, match=rf"no reward called {name}\. Did you mean {near}\? .*exact_match, format"):
        rewards.load([name])


def test_functions_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("BONUS = 0.5\n")
    (tmp_path / "mine.py").write_text(
        "from neighbour import BONUS\n\n\n"
        "def short(prompts, completions, **kwargs):\n    return [BONUS for _ in completions]\n\n\n"
        "def none(completions, **kwargs):\n    return [None for _ in completions]\n"
    )
    short, none = rewards.load([f"{tmp_path}/mine.py:short", f"{tmp_path}/mine.py:none"])
    assert short(prompts=["p"], completions=["c"]) == [0.5]
    assert none(prompts=["p"], completions=["c"]) == [None]
    assert (short.__name__, none.__name__) == ("short", "none")
    assert short.__module__ == none.__module__  # the file ran once


def test_function_of_a_module_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_rewards"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "length.py").write_text(
        "def score(completions, **kwargs):\n    return [float(len(c)) for c in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    (score,) = rewards.load(["my_rewards.length:score"])
    assert score(completions=["abc"]) == [3.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}/mime.py:short", r"mime\.py, which does not exist\. Did you mean mine\.py\?"),
        ("{}/mine.py:long", r"has no function long; it has (short|strict), (short|strict)\."),
        ("{}/mine.py:", r"has no function \(none is named\)"),
        ("{}/mine.py:strict", r"must take \*\*kwargs"),
        ("{}/mine.py:NUMBER", "is not a function but of type int"),
        ("{}/broken.py:short", r"ZeroDivisionError: division by zero \(.*broken\.py, line 2\)"),
        ("{}/syntax.py:short", r"SyntaxError: .*syntax\.py, line 1"),
        ("no_such_package.x:short", "No module named 'no_such_package'"),
    ],
)
def test_functions_that_cannot_be_used(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(
        "NUMBER = 1\n\n\ndef short(completions, **kwargs):\n    return []\n\n\n"
        "def strict(completions):\n    return []\n"
    )
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    (tmp_path / "syntax.py").write_text("def short(:\n")
    with pytest.raises(RewardError, match=message) as caught:
        rewards.load([name.format(tmp_path)])
    assert "\n" not in str(caught.value)


def test_two_rewards_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def format(completions, **kwargs):\n    return []\n")
    with pytest.raises(RewardError, match=r"format and .*mine\.py:format are both called format"):
        rewards.load(["format", f"{tmp_path}/mine.py:format"])
