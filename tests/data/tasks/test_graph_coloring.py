"""The built-in task `graph_coloring`: its problems keep the bounds, and no training problem is held out under other
names."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from itertools import permutations

import pytest

from covey import data
from covey.answers.tasks import COLORS, Graph, coloring_modes
from covey.config import DatasetConfig, DifficultyConfig, load
from covey.data.tasks.drawing import take
from covey.data.tasks.graph_coloring import MOST_CHANCE, ColoringDifficulty, ColoringProblem
from covey.errors import CoveyError, DataError


def renamed(problem: ColoringProblem, rng: random.Random) -> ColoringProblem:
    """The same problem with other names of vertices and colours."""
    names, colors = [*problem.graph.vertices], [*COLORS]
    rng.shuffle(names)
    rng.shuffle(colors)
    vertex = dict(zip(problem.graph.vertices, names, strict=True))
    color = {None: None, **dict(zip(COLORS, colors, strict=True))}
    own = {vertex[n]: color[c] for n, c in zip(problem.graph.vertices, problem.graph.given, strict=True)}
    edges = tuple(sorted("".join(sorted(vertex[edge[0]] + vertex[edge[1]])) for edge in problem.graph.edges))
    graph = Graph(problem.graph.vertices, edges, tuple(own[name] for name in problem.graph.vertices))
    return ColoringProblem(graph, "", problem.modes)


def isomorphic(one: Graph, other: Graph) -> bool:
    """By all ways to rename vertices and colours."""
    if len(one.vertices) != len(other.vertices) or len(one.edges) != len(other.edges):
        return False
    theirs = set(other.edges)
    for names in permutations(other.vertices):
        vertex = dict(zip(one.vertices, names, strict=True))
        if {"".join(sorted(vertex[edge[0]] + vertex[edge[1]])) for edge in one.edges} != theirs:
            continue
        given = {vertex[n]: c for n, c in zip(one.vertices, one.given, strict=True)}
        here = [given[name] for name in other.vertices]
        for colors in permutations(COLORS):
            color = {None: None, **dict(zip(COLORS, colors, strict=True))}
            if tuple(color[c] for c in here) == other.given:
                return True
    return False


def test_the_problems_keep_the_bounds() -> None:
    problems = take(ColoringDifficulty(), "train", 0, 400)
    assert {len(problem.graph.vertices) for problem in problems} == {5, 6, 7, 8}
    for problem in problems:
        modes = coloring_modes(problem.answer)
        assert modes is not None
        assert 2 <= len(modes) == problem.modes <= 16
        assert sum(modes.values()) <= MOST_CHANCE == 0.05
    assert len(Counter(problem.modes for problem in problems)) > 5


def test_a_control_with_one_answer_each() -> None:
    for problem in take(ColoringDifficulty(min_modes=1, max_modes=1), "test", 0, 60, unique=True):
        assert problem.modes == 1


def test_the_splits_share_no_problem_under_any_names() -> None:
    difficulty, rng = ColoringDifficulty(max_vertices=6), random.Random(0)
    train, test = take(difficulty, "train", 0, 300), take(difficulty, "test", 0, 40, unique=True)
    for problem in (*train[:60], *test):
        other = renamed(problem, rng)
        assert other.canonical == problem.canonical
        assert other.split == problem.split
    assert not any(isomorphic(one.graph, other.graph) for one in test[:12] for other in train)
    assert not any(isomorphic(one.graph, two.graph) for at, one in enumerate(test) for two in test[:at])


def test_the_same_seed_gives_the_same_problems() -> None:
    assert take(ColoringDifficulty(), "train", 5, 30) == take(ColoringDifficulty(), "train", 5, 30)
    assert take(ColoringDifficulty(), "train", 5, 30) != take(ColoringDifficulty(), "train", 6, 30)


def test_rows() -> None:
    config = load(["dataset=graph_coloring", "dataset.train_size=40", "dataset.test_size=10", "dataset.single_size=5"])
    assert config.rewards.funcs == ("graph_coloring", "format")
    loaded = data.load(config.dataset, seed=1)
    sizes = {name: len(rows) for name, rows in loaded.evaluation.items()}
    assert (len(loaded.train), sizes) == (40, {"test": 10, "single": 5})
    for rows in (loaded.train, *loaded.evaluation.values()):
        assert rows.column_names == ["prompt", "answer", "solution"]
        for row in rows:
            gold = json.loads(row["answer"])
            question = row["prompt"][-1]["content"]
            assert f"Given: {' '.join(f'{n}={c}' for n, c in gold['given'].items())}. " in question
            hidden = [name for name in gold["vertices"] if name not in gold["given"]]
            for name in hidden:
                near = sorted(edge.replace(name, "") for edge in gold["edges"] if name in edge)
                assert re.search(rf"[:;] {name}: {' '.join(near)}[;.]", question)
            assert [pair[0] for pair in row["solution"].split()] == hidden
    assert all(len(coloring_modes(text) or ()) == 1 for text in loaded.evaluation["single"]["answer"])


def test_mistakes_name_their_key() -> None:
    with pytest.raises(DataError, match=r"^dataset\.difficulty: min_modes=20 and max_modes=16 do not fit together"):
        data.load(DatasetConfig(task="graph_coloring", difficulty=DifficultyConfig(min_modes=20)), seed=0)
    few = DifficultyConfig(min_vertices=4, max_vertices=4)  # with four, chance is above MOST_CHANCE
    with pytest.raises(DataError, match=r"^dataset\.train_size=1: graph_coloring with 4 to 4 vertices and 2 to 16"):
        data.load(DatasetConfig(task="graph_coloring", train_size=1, difficulty=few), seed=0)
    with pytest.raises(CoveyError, match=r"dataset\.difficulty\.min_vertices=8 must not be above .*max_vertices=6"):
        DifficultyConfig(min_vertices=8, max_vertices=6)
    with pytest.raises(CoveyError, match=r"dataset\.single_size=5 is for dataset=countdown and"):
        DatasetConfig(task="arithmetic", single_size=5)
