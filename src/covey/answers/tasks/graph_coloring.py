"""Completing a partial colouring of a graph with three colours: reading answers, and every right answer of a problem.

Gold answers are JSON text (or mappings) such as `{"vertices": "ABCD", "edges": ["AB", "BC"], "given": {"A": "red"}}`:
vertices are single letters, and an edge is the two that it joins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from covey.answers.tasks.gold import read_json

COLORS = ("red", "green", "blue")
MOST_VERTICES = 12
"""Most vertices of a problem."""

_PAIR = re.compile(r"([A-Za-z])\s*[=:]\s*([A-Za-z]+)[\s,;.]*")
_SHORT = {color[0]: color for color in COLORS}
_LONGEST = 500  # characters of an answer


class UnreadableColoringError(ValueError):
    """The text is no list of vertices with colours."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of which some vertices have a colour."""

    vertices: str
    """One letter for each."""
    edges: tuple[str, ...]
    """The two vertices of each, in the order of `vertices`."""
    given: tuple[str | None, ...]
    """The colour of each vertex; None for those that are asked for."""

    @property
    def hidden(self) -> str:
        """The vertices that are asked for."""
        return "".join(name for name, color in zip(self.vertices, self.given, strict=True) if color is None)

    def neighbours(self, name: str) -> list[str]:
        """The vertices that edges join to this one, in order."""
        return [edge.replace(name, "") for edge in self.edges if name in edge]

    @property
    def chance(self) -> float:
        """The probability of one right answer when each asked vertex gets a uniformly random colour."""
        return float(1 / len(COLORS) ** len(self.hidden))


def read_graph(gold: Any) -> Graph | None:
    """The graph of a gold answer; None where it has another format."""
    gold = read_json(gold)
    if not isinstance(gold, Mapping):
        return None
    vertices, edges, given = (gold.get(key) for key in ("vertices", "edges", "given"))
    if not isinstance(vertices, str) or not isinstance(edges, list | tuple) or not isinstance(given, Mapping):
        return None
    named = len(set(vertices)) == len(vertices) <= MOST_VERTICES and vertices.isalpha() and vertices.isupper()
    joined = all(isinstance(edge, str) and len(edge) == 2 == len(set(edge) & set(vertices)) for edge in edges)
    # With data from a table, every row has the keys of all rows, with null for those that it lacks.
    known = {name: color for name, color in given.items() if color is not None}
    if not named or not joined or not set(known) <= set(vertices) or any(one not in COLORS for one in known.values()):
        return None
    ordered = sorted("".join(sorted(edge, key=vertices.index)) for edge in edges)
    return Graph(vertices, tuple(ordered), tuple(known.get(name) for name in vertices))


def read_coloring(answer: str) -> dict[str, str]:
    """The colours that an answer such as `A=red B=green` gives to vertices.

    Signs and cases are free: `a: r, b: g` is the same, with the first letters of the colours.

    Raises:
        UnreadableColoringError: it is anything else, or gives a vertex two colours.
    """
    if len(answer) > _LONGEST:
        raise UnreadableColoringError
    found: dict[str, str] = {}
    position, text = 0, answer.strip()
    while position < len(text):
        pair = _PAIR.match(text, position)
        if pair is None:
            raise UnreadableColoringError
        name, color = pair[1].upper(), _SHORT.get(pair[2].lower(), pair[2].lower())
        if color not in COLORS or found.setdefault(name, color) != color:
            raise UnreadableColoringError
        position = pair.end()
    if not found:
        raise UnreadableColoringError
    return found


def full_coloring(graph: Graph, colors: Mapping[str, str]) -> tuple[str, ...] | None:
    """The colours of all vertices, the given ones among them; None unless the answer names each asked vertex, no other
    but given ones, and these in their colours."""
    full = [colors.get(name, color) for name, color in zip(graph.vertices, graph.given, strict=True)]
    kept = all(color in (None, own) for color, own in zip(graph.given, full, strict=True))
    if not kept or not set(colors) <= set(graph.vertices):
        return None
    plain = tuple(color for color in full if color is not None)
    return plain if len(plain) == len(full) else None


def is_proper(graph: Graph, coloring: Sequence[str]) -> bool:
    """Whether the ends of each edge differ in colour."""
    colors = dict(zip(graph.vertices, coloring, strict=True))
    return all(colors[edge[0]] != colors[edge[1]] for edge in graph.edges)


def mode_of(graph: Graph, coloring: Sequence[str]) -> str:
    """A full colouring as text: `A=red B=green`."""
    return " ".join(f"{name}={color}" for name, color in zip(graph.vertices, coloring, strict=True))


def colorings(graph: Graph) -> list[tuple[str, ...]]:
    """Every proper colouring that keeps the given colours."""
    neighbours = [
        [graph.vertices.index(edge[0]) for edge in graph.edges if edge[1] == name] for name in graph.vertices
    ]  # those that come before it

    def extended(so_far: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        at = len(so_far)
        if at == len(graph.vertices):
            yield so_far
            return
        own = graph.given[at]
        for color in COLORS if own is None else (own,):
            if all(so_far[other] != color for other in neighbours[at]):
                yield from extended((*so_far, color))

    return list(extended(()))


@lru_cache(maxsize=4096)
def all_modes(graph: Graph) -> Mapping[str, float]:
    """Every right answer (see `mode_of`) with its chance (see `Graph.chance`)."""
    return {mode_of(graph, coloring): graph.chance for coloring in colorings(graph)}


def modes(gold: Any) -> Mapping[str, float] | None:
    """As `all_modes`, of a gold answer; None where it cannot be read."""
    graph = read_graph(gold)
    return None if graph is None else all_modes(graph)
