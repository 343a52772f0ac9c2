"""Reward functions of the user's own: found by name, checked by their signatures and against the columns."""

from __future__ import annotations

import asyncio
import inspect
import sys
from pathlib import Path

import pytest

from covey import rewards
from covey.errors import RewardError


@pytest.fixture(autouse=True)
def _keep_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a test imports from its own folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


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


def test_functions_that_take_solution_get_the_answer(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def same(completions, solution, **kwargs):\n"
        "    return [float(c == s) for c, s in zip(completions, solution)]\n"
        "\n\nasync def later(completions, solution, **kwargs):\n    return same(completions, solution)\n"
    )
    same, later = rewards.load([f"{tmp_path}/mine.py:same", f"{tmp_path}/mine.py:later"], columns=["answer"])
    columns = {"prompts": ["p"] * 2, "completions": ["a", "b"]}
    assert (same.__name__, later.__name__) == ("same", "later")
    assert same(**columns, answer=["a", "a"]) == [1.0, 0.0]
    assert same(**columns, answer=["a", "a"], solution=["b", "b"]) == [0.0, 1.0]
    assert inspect.iscoroutinefunction(later)
    assert asyncio.run(later(**columns, answer=["a", "a"])) == [1.0, 0.0]


MINE = """
import functools

NUMBER = 1


def short(completions, **kwargs):
    return []


def strict(completions):
    return []


def position(prompts, completions, /, **kwargs):
    return []


def whole(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, level=None):
    return []


def hard(completions, level, **kwargs):
    return []


class Scorer:
    def __call__(self, completions, **kwargs):
        return []


scorer = Scorer()
part = functools.partial(short)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}/mime.py:short", r"mime\.py, which does not exist\. Did you mean mine\.py\?"),
        ("{}/mine.py:shirt", r"has no shirt; it has short, "),
        ("{}/mine.py:", r"has no name after the colon"),
        ("{}/mine.py:strict", r"must take \*\*kwargs.* does not take prompts: def strict\(completions, \*\*kwargs\)"),
        ("{}/mine.py:position", r"takes prompts by position only.*def position\(prompts, completions, \*\*kwargs\)"),
        ("{}/mine.py:NUMBER", "is not a function but of type int"),
        ("{}/mine.py:Scorer", "is not a function but of type type"),
        ("{}/mine.py:scorer", "is not a function but of type Scorer"),
        ("{}/mine.py:part", "is not a function but of type partial"),
        ("{}/broken.py:short", r"ZeroDivisionError: division by zero \(.*broken\.py, line 2\)"),
        ("{}/syntax.py:short", r"SyntaxError: .*syntax\.py, line 1"),
        ("no_such_package.x:short", "No module named 'no_such_package'"),
        ("builtins:min", r"min has no signature to inspect"),
    ],
)
def test_functions_that_cannot_be_used(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    (tmp_path / "syntax.py").write_text("def short(:\n")
    with pytest.raises(RewardError, match=message) as caught:
        rewards.load([name.format(tmp_path)])
    assert "\n" not in str(caught.value)


def test_functions_are_checked_against_the_columns(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    whole, hard = f"{tmp_path}/mine.py:whole", f"{tmp_path}/mine.py:hard"
    known = ["accuracy", "exact_match", "format", "soft_overlong"]
    assert len(rewards.load([*known, whole, hard], columns=["prompt", "level"])) == len(known) + 2
    with pytest.raises(RewardError, match=r"hard needs level, but .* has answer, levels\. Did you mean levels\?"):
        rewards.load([hard], columns=["answer", "levels"])
    with pytest.raises(RewardError, match=r"whole must take \*\*kwargs.* does not take question: def whole"):
        rewards.load([whole], columns=["question"])


def test_columns_have_the_names_of_the_users_file(tmp_path: Path) -> None:
    """A text in `prompt` becomes a conversation, and the text itself `original_prompt`."""
    (tmp_path / "mine.py").write_text(
        "def wants(completions, colour, **kwargs):\n    return []\n\n\n"
        "def looks(completions, image, **kwargs):\n    return []\n"
    )
    columns = ["prompt", "original_prompt", "topic", "original_id"]
    with pytest.raises(RewardError, match=r"wants needs colour, but .*; it has original_id, prompt, topic\."):
        rewards.load([f"{tmp_path}/mine.py:wants"], columns=columns)
    with pytest.raises(RewardError, match="looks needs image, but a reward gets that column of the data as original_i"):
        rewards.load([f"{tmp_path}/mine.py:looks"], columns=[*columns, "original_image"])
