"""Colourings: what is read, what is right, and every right answer, against all assignments of colours."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from corpus import read_cases
from covey.answers import Outcome
from covey.answers.tasks import COLORS, coloring_modes, read_graph
from covey.data.tasks.drawing import take
from covey.data.tasks.graph_coloring import ColoringDifficulty
from covey.rewards import Graded, RewardSettings, find

TRIANGLE = {"vertices": "ABCD", "edges": ["AB", "CB", "CA", "DC"], "given": {"A": "red"}}


def graded(answer: str, gold: Any = TRIANGLE, text: str = "<answer>{}</answer>") -> Graded:
    sample = find("graph_coloring", RewardSettings()).sample
    assert sample is not None
    return sample(text.format(answer), {"answer": gold})


def test_the_answer_may_be_boxed_and_is_the_last() -> None:
    assert graded("B=green C=blue D=red", text=r"\boxed{{{}}}").outcome is Outcome.RIGHT
    assert graded("B=green C=blue D=red", text="<answer>B=red</answer> no: <answer>{}</answer>").value == 1.0


def test_gold_answers_that_cannot_be_read_have_no_modes() -> None:
    cases = read_cases(Path(__file__).parents[1] / "rewards" / "values.jsonl")["graph_coloring"]
    unreadable = [case["gold"] for case in cases if case["verdict"] == [None, "unparsable_gold"]]
    assert len(unreadable) == 12
    assert [coloring_modes(gold) for gold in [*unreadable, "[" * 100_000]] == [None] * 13


def test_colours_that_are_null_are_not_given() -> None:
    """As rows of a table have them."""
    assert read_graph({**TRIANGLE, "given": {"A": "red", "D": None}}) == read_graph(json.dumps(TRIANGLE))


def test_the_modes_are_all_right_assignments_with_equal_chances() -> None:
    for problem in take(ColoringDifficulty(max_vertices=7), "train", 0, 40):
        gold = json.loads(problem.answer)
        hidden = [name for name in gold["vertices"] if name not in gold["given"]]
        right = set()
        for colors in product(COLORS, repeat=len(hidden)):
            full = gold["given"] | dict(zip(hidden, colors, strict=True))
            if all(full[edge[0]] != full[edge[1]] for edge in gold["edges"]):
                right.add(" ".join(f"{name}={full[name]}" for name in gold["vertices"]))
                answer = " ".join(f"{name}={full[name]}" for name in reversed(hidden))
                assert graded(answer, problem.answer).mode in right
        found = coloring_modes(problem.answer)
        assert found == dict.fromkeys(right, pytest.approx(3 ** -len(hidden)))
        assert len(right) == problem.modes
        assert graded(problem.solution, problem.answer).value == 1.0
