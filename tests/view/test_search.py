"""Searching, filtering and sorting completions, against a plain loop over all of them."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from covey.errors import ConfigError
from covey.report.completions import Shown
from covey.view.completions import FileColumns, FileTexts, Query, SourceIndex

TEXTS = (
    "The answer is 42.",
    "no answer",
    "l'ÉCOLE été",
    "Straße",
    "a(b)*c\n\x00\x1b[31m",
    "x" * 300 + " far away",
    "kelvin \u212a",
    "\ud800 alone",
    "",
)


def made(files: int, seed: int = 0) -> list[tuple[int | None, list[tuple[list[int], Shown]]]]:
    """Files of groups, with what the pages show of completions; unknown values are left out."""
    draw = random.Random(seed)
    found = []
    for step in range(files):
        place, groups = 0, []
        for number in range(draw.randrange(4)):
            completions = [_completion(draw) for _ in range(draw.randrange(1, 4))]
            group: Shown = {"prompt": f"Question {number} of {step}?", "question": "q" * draw.choice((3, 400))}
            group |= {"answer": draw.choice(["42", "gold"])} if draw.random() < 0.8 else {}
            group |= {"problem": number} if draw.random() < 0.8 else {}
            groups.append((list(range(place, place + len(completions))), {**group, "completions": completions}))
            place += len(completions)
        found.append((step, groups))
    return found


def _completion(draw: random.Random) -> dict[str, Any]:
    values = {
        "reward": draw.choice([0, 0.5, 2]),
        "advantage": draw.gauss(0, 1),
        "length": draw.randrange(100),
        "outcome": draw.choice(["right", "wrong", "wrong_form"]),
        "truncated": draw.random() < 0.5,
        "calls": draw.randrange(3),
        "failures": draw.randrange(2),
        "ended": draw.choice(["answered", "truncated", "crashed"]),
    }
    return {"text": draw.choice(TEXTS)} | {name: value for name, value in values.items() if draw.random() < 0.8}


def index_of(files: list[tuple[int | None, list[tuple[list[int], Shown]]]]) -> SourceIndex:
    texts = [FileTexts(groups) for _, groups in files]
    return SourceIndex([FileColumns(step, groups) for step, groups in files], texts.__getitem__)


def slowly(files: list[tuple[int | None, list[tuple[list[int], Shown]]]], query: Query) -> list[str]:
    """The rows that are wanted, in order, one completion at a time."""
    rows = [
        (f"{step}:{place}", {"step": step, **group, **one})
        for step, groups in files
        for places, group in groups
        for place, one in zip(places, group["completions"], strict=True)
    ]

    def wanted(one: dict[str, Any]) -> bool:
        text = f"{one['prompt']}\n{one.get('answer', '')}\n{one['text']}".lower()
        episodes = {
            "": True,
            "called": one.get("calls", 0) > 0,
            "uncalled": not one.get("calls", 0) > 0,
            "failed": one.get("failures", 0) > 0,
            "unanswered": one.get("ended", "answered") != "answered",
            "=crashed": one.get("ended") == "crashed",
        }
        return bool(
            query.q.lower() in text
            and query.step in (None, one["step"])
            and query.problem in (None, one.get("problem"))
            and (query.outcome != "not right" or one.get("outcome") != "right")
            and (query.outcome in ("", "not right") or one.get("outcome") == query.outcome)
            and (not query.truncated or one.get("truncated"))
            and episodes[query.episode]
        )

    found = [(row, one) for row, one in rows if wanted(one)]
    name, _, way = query.sort.rpartition("-")
    if name:
        sign = -1 if way == "down" else 1
        found.sort(key=lambda pair: math.inf if pair[1].get(name) is None else sign * pair[1][name])
    return [row for row, _ in found]


@pytest.mark.parametrize("seed", range(2))
def test_every_filter_and_order_agrees_with_a_plain_loop(seed: int) -> None:
    files, draw = made(70, seed), random.Random(seed)  # more files than are searched together
    index = index_of(files)
    asked = 0
    for _ in range(60):
        query = Query(
            q=draw.choice(
                ["", "", "ANSWER", "42", "école", "b)*C", "Question 1", "n", "\n", "\x00", "far", "gold", "zzz"]
            ),
            step=draw.choice([None, None, None, 7]),
            problem=draw.choice([None, None, 1]),
            outcome=draw.choice(["", "", "right", "not right", "wrong_form"]),
            truncated=draw.random() < 0.2,
            episode=draw.choice(["", "", "called", "uncalled", "failed", "unanswered", "=crashed"]),
            sort=draw.choice(["step", "reward-down", "reward-up", "advantage-down", "length-down", "calls-up"]),
            limit=10**6,
        )
        total, rows = index.find(query)
        expected = slowly(files, query)
        assert (total, [row["row"] for row in rows]) == (len(expected), expected), query
        asked += bool(expected)
    assert asked > 20


def test_pages_are_parts_of_the_whole() -> None:
    index = index_of(made(20))
    total, whole = index.find(Query(sort="reward-down", limit=1000))
    pages = [index.find(Query(sort="reward-down", offset=at, limit=7)) for at in range(0, total + 7, 7)]
    assert [row for _, rows in pages for row in rows] == whole
    assert {found for found, _ in pages} == {total}
    assert index.find(Query(offset=10**9)) == (total, [])


def test_a_short_row() -> None:
    group = {"prompt": "p", "question": "q" * 400, "answer": "7", "problem": 3}
    one = {"text": "x" * 300 + "FOUND" + "y" * 300, "reward": 0.5, "length": 12, "outcome": "right", "truncated": True}
    index = index_of([(None, [([4], {**group, "completions": [one]})])])
    _, (row,) = index.find(Query(q="found"))
    excerpt = row.pop("text")
    assert row == {"row": ":4", "problem": 3, "reward": 0.5, "length": 12, "outcome": "right", "truncated": True} | {
        "question": "q" * 160
    }
    assert excerpt == "…" + "x" * 53 + "FOUND" + "y" * 102
    assert index.facets == {"outcomes": ["right"], "ends": [], "has": ["reward", "length", "truncated"]}


def test_an_empty_source() -> None:
    for index in (index_of([]), index_of([(1, [])])):
        assert (len(index), index.find(Query(q="a", outcome="right", sort="reward-down"))) == (0, (0, []))
        assert index.facets == {"outcomes": [], "ends": [], "has": []}


def test_parameters_of_an_address() -> None:
    given = {"q": "a", "step": "3", "truncated": "1", "sort": "length-down", "offset": "5", "limit": "9999", "id": "x"}
    assert Query.of(given) == Query(q="a", step=3, truncated=True, sort="length-down", offset=5, limit=500)
    assert Query.of({}) == Query()
    assert Query.of({}).is_plain
    assert Query.of({"offset": "50", "limit": "20"}).is_plain
    assert Query.of({"limit": "0"}).limit == 0
    assert not Query.of({"step": "0"}).is_plain
    for name, value in (
        ("sort", "reward"),
        ("episode", "lost"),
        ("step", "-1"),
        ("limit", "1e3"),
        ("offset", "9" * 40),
    ):
        with pytest.raises(ConfigError, match=f"{name}="):
            Query.of({name: value})
