"""Colourings: what is read, what is right, and every right answer, against all assignments of colours."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from covey.answers import Outcome
from covey.answers.tasks.graph_coloring import COLORS, read_graph
from covey.answers.tasks.graph_coloring import modes as all_modes
from covey.data.sources.drawing import take
from covey.data.sources.graph_coloring import ColoringDifficulty
from covey.rewards import Graded, RewardSettings, find

TRIANGLE = {"vertices": "ABCD", "edges": ["AB", "CB", "CA", "DC"], "given": {"A": "red"}}


def graded(answer: str, gold: Any = TRIANGLE, text: str = "<answer>{}</answer>") -> Graded:
    sample = find("graph_coloring", RewardSettings()).sample
    assert sample is not None
    return sample(text.format(answer), {"answer": gold})


@pytest.mark.parametrize(
    "answer",
    [
        "B=green C=blue D=red",
        "D=red, B=green, C=blue.",
        "b: g; c: b; d: r",
        "A=red B=green C=blue D=red",
        "B = Green\nC = BLUE\nD = red",
        "B=green B=green C=blue D=red",
    ],
)
def test_spellings_of_one_right_answer_have_one_mode(answer: str) -> None:
    assert graded(answer) == Graded(1.0, Outcome.RIGHT, mode="A=red B=green C=blue D=red")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("B=green C=green D=red", Outcome.WRONG),  # an edge joins B and C
        ("B=green C=blue", Outcome.WRONG),  # D is missing
        ("A=blue B=green C=red D=green", Outcome.WRONG),  # A is given
        ("B=green C=blue D=red E=red", Outcome.WRONG),
        ("B=green C=blue D=red D=blue", Outcome.UNPARSABLE_PREDICTION),
        ("B=yellow C=blue D=red", Outcome.UNPARSABLE_PREDICTION),
        ("green, blue, red", Outcome.UNPARSABLE_PREDICTION),
        ("B=green, then C=blue D=red", Outcome.UNPARSABLE_PREDICTION),
        ("", Outcome.UNPARSABLE_PREDICTION),
        ("B=green " * 1000, Outcome.UNPARSABLE_PREDICTION),
    ],
)
def test_answers_that_are_not_right(answer: str, outcome: Outcome) -> None:
    found = graded(answer)
    assert (found.value, found.outcome) == (0.0, outcome)


def test_the_answer_may_be_boxed_and_is_the_last() -> None:
    assert graded("B=green C=blue D=red", text=r"\boxed{{{}}}").outcome is Outcome.RIGHT
    assert graded("B=green C=blue D=red", text="<answer>B=red</answer> no: <answer>{}</answer>").value == 1.0


@pytest.mark.parametrize(
    "gold",
    [
        None,
        "42",
        "not JSON",
        {"vertices": "AB", "edges": ["AC"], "given": {}},
        {"vertices": "AB", "edges": ["AA"], "given": {}},
        {"vertices": "AB", "edges": ["AB"], "given": {"A": "pink"}},
        {"vertices": "AB", "edges": ["AB"], "given": {"C": "red"}},
        {"vertices": "AB", "edges": ["AB"], "given": {"A": ["red"]}},
        {"vertices": "AB", "edges": [["A", "B"]], "given": {"A": {}}},
        "[" * 100_000,
        {"vertices": "AA", "edges": [], "given": {}},
        {"vertices": "ab", "edges": [], "given": {}},
        {"vertices": "AB", "edges": "AB", "given": []},
    ],
)
def test_gold_answers_that_are_none(gold: Any) -> None:
    assert graded("A=red", gold) == Graded(None, Outcome.UNPARSABLE_GOLD)
    assert all_modes(gold) is None


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
        found = all_modes(problem.answer)
        assert found == dict.fromkeys(right, pytest.approx(3 ** -len(hidden)))
        assert len(right) == problem.modes
        assert graded(problem.solution, problem.answer).value == 1.0
