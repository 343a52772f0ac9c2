"""The built-in task `graph_coloring`: complete a partial colouring with three colours. Every right answer is known.

As with `arithmetic`, a hash decides whether a problem is held out, regardless of seed, size and difficulty: of a form
that is the same for isomorphic problems, which differ in the names of vertices and colours only. So no training problem
is a held-out one under other names.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from covey.answers.tasks import COLORS, MOST_VERTICES, Graph, colorings
from covey.data.tasks.drawing import Drawing, Drawn, check_modes
from covey.errors import DataError

MOST_CHANCE = 0.05
"""The highest probability, in any problem, that a random answer is right; more vertices are hidden until it holds."""

_NAMES = "ABCDEFGHIJKL"


@dataclass(frozen=True, slots=True)
class ColoringDifficulty(Drawing["ColoringProblem"]):
    """The kind of problems. The fields are those of the config's `dataset.difficulty`."""

    min_vertices: int = 5
    max_vertices: int = 8
    min_modes: int = 2
    """Fewest right answers."""
    max_modes: int = 16
    """Most right answers."""

    NAME: ClassVar[str] = "graph-coloring"
    CURE: ClassVar[str] = "Ask for fewer, or raise max_vertices."

    def __post_init__(self) -> None:
        if not 4 <= self.min_vertices <= self.max_vertices <= MOST_VERTICES:
            raise DataError(
                f"min_vertices={self.min_vertices} and max_vertices={self.max_vertices} do not fit together: "
                f"graph_coloring needs 4 <= min_vertices <= max_vertices <= {MOST_VERTICES}."
            )
        check_modes(self.min_modes, self.max_modes)

    def __str__(self) -> str:
        return (
            f"graph_coloring with {self.min_vertices} to {self.max_vertices} vertices and {self.min_modes} to "
            f"{self.max_modes} right answers"
        )

    def draw(self, rng: random.Random) -> ColoringProblem | None:
        """A random graph around a random colouring, with some of its colours hidden; None if it does not fit."""
        count = rng.randint(self.min_vertices, self.max_vertices)
        names = _NAMES[:count]
        colors = dict(zip(names, (rng.choice(COLORS) for _ in names), strict=True))
        hidden = set(rng.sample(names, rng.randint(3, count - 1)))
        density = rng.uniform(0.4, 0.9)
        edges = tuple(  # those between two given vertices would decide nothing
            one + other
            for one, other in combinations(names, 2)
            if {one, other} & hidden and colors[one] != colors[other] and rng.random() < density
        )
        graph = Graph(names, edges, tuple(None if name in hidden else colors[name] for name in names))
        if any(not any(name in edge for edge in edges) for name in names):
            return None
        modes = len(colorings(graph))
        if not self.min_modes <= modes <= self.max_modes or modes * graph.chance > MOST_CHANCE:
            return None
        return ColoringProblem(graph, _listed((name, colors[name]) for name in graph.hidden), modes)


@dataclass(frozen=True, slots=True)
class ColoringProblem(Drawn):
    """A graph with some colours, and one solution."""

    graph: Graph
    solution: str
    """The colours of the hidden vertices, as an answer gives them."""
    modes: int
    """Right answers."""

    @property
    def text(self) -> str:
        """The question as the model reads it."""
        given = _listed((n, c) for n, c in zip(self.graph.vertices, self.graph.given, strict=True) if c is not None)
        asked = "; ".join(f"{name}: {' '.join(self.graph.neighbours(name))}" for name in self.graph.hidden)
        return (
            "Color each vertex of a graph red, green or blue, so that neighbors differ. "
            f"Given: {given}. To color, with their neighbors: {asked}. The answer is a list such as A=red B=green."
        )

    @property
    def answer(self) -> str:
        """What a checker needs: JSON text with `vertices`, `edges` and `given`."""
        known = {n: c for n, c in zip(self.graph.vertices, self.graph.given, strict=True) if c is not None}
        return json.dumps({"vertices": self.graph.vertices, "edges": list(self.graph.edges), "given": known})

    @property
    def canonical(self) -> str:
        """The same for isomorphic problems; for others almost always another.

        By colour refinement (Weisfeiler and Leman 1968), of the graph with a vertex more for each colour, joined to the
        vertices that have it.
        """
        graph = self.graph
        names = [*graph.vertices, *COLORS]
        given = [(n, c) for n, c in zip(graph.vertices, graph.given, strict=True) if c is not None]
        near: dict[str, list[str]] = {name: [] for name in names}
        for one, other in [*((edge[0], edge[1]) for edge in graph.edges), *given]:
            near[one].append(other)
            near[other].append(one)
        labels = {name: "color" if name in COLORS else "vertex" for name in names}
        for _ in names:
            labels = {n: _digest(f"{labels[n]}({','.join(sorted(labels[o] for o in near[n]))})") for n in names}
        return " ".join(sorted(labels.values()))


def _listed(colors: Iterator[tuple[str, str]]) -> str:
    return " ".join(f"{name}={color}" for name, color in colors)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
