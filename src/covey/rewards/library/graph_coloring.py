"""Completing a partial colouring of a graph with three colours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.answers import Outcome, final_answer
from covey.answers.tasks.graph_coloring import (
    UnreadableColoringError,
    full_coloring,
    is_proper,
    mode_of,
    read_coloring,
    read_graph,
)
from covey.rewards.reward import Graded, gold_value
from covey.rewards.settings import RewardSettings


def graph_coloring(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    r"""1 where the completion gives every asked vertex one of three colours and no edge joins two of a colour, else 0.

    The answer is the content of the last `<answer>…</answer>` after the thinking, or else of the last `\boxed{…}`:
    vertices with their colours, as `A=red B=green`, `A: red, B: green` or `A=r B=g`. Given vertices may be repeated in
    their own colours.

    The gold answer is `{"vertices": "ABC", "edges": ["AB"], "given": {"A": "red"}}`, as JSON or as a mapping; any right
    colouring counts. Its mode is the colouring of all vertices.

    Range: 0 or 1, None where the gold answer cannot be read. Source: the task of "Exploration Should Act at the Group
    Level in RL LLM Fine-Tuning" (2026), as `dataset=graph_coloring` draws it.
    """
    graph = read_graph(gold_value(row))
    if graph is None:
        return Graded(None, Outcome.UNPARSABLE_GOLD)
    answer = final_answer(text, settings.tags)
    try:
        colors = read_coloring(answer or "")
    except UnreadableColoringError:
        return Graded(0.0, Outcome.UNPARSABLE_PREDICTION)
    full = full_coloring(graph, colors)
    if full is None:
        return Graded(0.0, Outcome.WRONG)
    right = is_proper(graph, full)
    return Graded(float(right), Outcome.RIGHT if right else Outcome.WRONG, mode=mode_of(graph, full))
