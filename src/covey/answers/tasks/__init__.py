"""Tasks whose right answers are all known: reading an answer, its mode, and every mode of a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from covey.answers.tasks import countdown, graph_coloring

MODES: Mapping[str, Callable[[Any], Mapping[str, float] | None]] = MappingProxyType(
    {"countdown": countdown.modes, "graph_coloring": graph_coloring.modes}
)
"""By grader: from a problem's gold answer to all its modes, each with the probability of a uniformly random well-formed
answer; None where they are not known."""
