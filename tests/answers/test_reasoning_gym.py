"""reasoning-gym's problems and scorers: exact in every process, and as JSON, over all of its tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from covey.answers import reasoning_gym
from covey.errors import DataError

SLOW = ("knight_swap",)
NEEDS_SETTINGS = ("composite",)


def test_values_keep_their_types_as_json() -> None:
    value = {"a": [(1, (2.5, None))], "b": {1: "x", "1": "y"}, "c": {(0, 1): True}, "d": {"__other__": 1}}
    assert json.loads(json.dumps(reasoning_gym._encoded(value)), object_hook=reasoning_gym._decoded) == value


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"dataset.task=x: .*not installed.*covey\[reasoning-gym\]"):
        reasoning_gym.draw("x", {}, 0, 1, "dataset.task=x")


@pytest.mark.parametrize("text", ["", "5", "{", "[1]", None])
def test_a_column_that_holds_something_else(text: str) -> None:
    with pytest.raises(DataError, match="does not hold a problem"):
        reasoning_gym.score("1", text)


def tasks() -> list[str]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        return ["chain_sum"]
    return sorted(set(DATASETS) - {*SLOW, *NEEDS_SETTINGS})


@pytest.mark.slow
@pytest.mark.adapter("reasoning_gym")
def test_every_task_scores_from_its_text_as_from_its_own_entry() -> None:
    found = tasks()
    assert len(found) > 100
    for task in found:
        made = reasoning_gym.make_task(task, {}, "here", seed=3, size=2)
        for i in range(2):
            entry = made[i]
            _, answer, text = reasoning_gym._problem(task, {}, entry)
            assert json.loads(text, object_hook=reasoning_gym._decoded)[2] == entry, task
            if answer is not None:
                assert reasoning_gym.score(answer, text) == made.score_answer(answer, entry) == 1.0, task
            for wrong in ("7 wrong", "", "[", "((", "1/0", "None", "\x00", "-1e999"):
                assert 0 <= reasoning_gym.score(wrong, text) <= 1, task
            assert reasoning_gym.score(None, text) == 0.0


@pytest.mark.slow
@pytest.mark.adapter("reasoning_gym")
@pytest.mark.parametrize("task", ["chain_sum", "ransom_note", "isomorphic_strings", "polynomial_multiplication"])
def test_the_problems_are_the_same_in_every_process(task: str) -> None:
    """Three of them differ with the seed of string hashes."""
    script = (
        "import json, sys\nfrom covey.answers.reasoning_gym import draw\n"
        f"json.dump(draw({task!r}, {{}}, 5, 20, 'here'), sys.stdout)"
    )
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
            ).stdout
        )
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len({question for question, _, _ in found[0]}) > 10
    other = reasoning_gym.draw(task, {}, 6, 20, "here")
    assert [list(problem) for problem in other] != found[0]


@pytest.mark.adapter("reasoning_gym")
def test_a_problem_that_cannot_be_made() -> None:
    with pytest.raises(DataError, match=r"key: reasoning-gym has no task chan_sum\. Did you mean chain_sum"):
        reasoning_gym.draw("chan_sum", {}, 1, 1, "key")
    with pytest.raises(DataError, match="does not take the settings"):
        reasoning_gym.draw("composite", {}, 1, 1, "key")


@pytest.mark.adapter("reasoning_gym")
def test_a_composite_of_tasks_scores_with_each_task() -> None:
    parts = [{"name": "chain_sum"}, {"name": "leg_counting", "weight": 1, "config": {"max_animals": 3}}]
    for _, answer, text in reasoning_gym.draw("composite", {"datasets": parts}, 1, 6, "key"):
        assert reasoning_gym.score(answer, text) == 1.0
        assert reasoning_gym.score("-77", text) < 1.0
