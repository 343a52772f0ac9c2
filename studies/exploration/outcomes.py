"""The outcomes of checkpoints, by arm and pair, and how tables show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from analysis import Pair
from arms import CHECKPOINTS, STARTS, STEPS
from data import START, Counts, Key

from covey.evaluation.estimators import Estimate, coverage_at_k, distinct_at_k, mean, pass_at_k

K = 8
OUTCOMES = ("coverage@8", "mean@8", "pass@8", "distinct@8")
"""Those that are tested."""
IF_SOLVED = "distinct@8 if solved"
STEP = "step"
Outcomes = Mapping[Key, Mapping[str, float]]
"""The figures of each checkpoint, by name."""
_SHARES = ("coverage@8", "mean@8", "pass@8")


def figures(problems: Counts) -> dict[str, float]:
    """The outcomes of one checkpoint, each the mean over problems; `IF_SOLVED` is the ratio of two of them."""
    accuracy = mean([right / n for right, n, _, _ in problems])
    if problems[0][1] < K:
        return {"mean@8": accuracy}
    solved = mean([pass_at_k(n, right, K) for right, n, _, _ in problems])
    distinct = mean([distinct_at_k(counts, n, K) for _, n, _, counts in problems])
    return {
        "coverage@8": mean([coverage_at_k(counts, n, K, modes) for _, n, modes, counts in problems]),
        "mean@8": accuracy,
        "pass@8": solved,
        "distinct@8": distinct,
        IF_SOLVED: distinct / solved if solved else math.nan,
    }


def pair(seed: int) -> Pair:
    """Start and seed."""
    return seed % len(STARTS), seed


def of_arm(found: Outcomes, task: str, arm: str, outcome: str, temperature: float = 1.0) -> dict[Pair, float]:
    """One outcome of an arm's last checkpoints, by pair."""
    return {
        pair(key[2]): one[outcome]
        for key, one in found.items()
        if (*key[:2], *key[3:]) == (task, arm, STEPS, temperature)
    }


def of_starts(found: Outcomes, task: str, outcome: str) -> list[float]:
    return [one[outcome] for key, one in found.items() if key[:2] == (task, START)]


def paths(found: Outcomes, task: str, arm: str, outcome: str) -> dict[Pair, list[tuple[float, float]]]:
    """(mean@8, outcome) of the start and of every checkpoint, by pair; the outcome may be `STEP`."""
    steps = (0, *CHECKPOINTS)
    by_pair = {}
    for one in of_arm(found, task, arm, "mean@8"):
        start, seed = one
        points = [found.get((task, arm, seed, s, 1.0) if s else (task, START, start, 0, 1.0)) for s in steps]
        if all(points):
            by_pair[one] = [
                (point["mean@8"], step if outcome == STEP else point[outcome])
                for step, point in zip(steps, points, strict=True)
                if point
            ]
    return by_pair


def shown(estimate: Estimate, outcome: str, *, signed: bool = False, pairs: int | None = None) -> str:
    """A value with its interval, shares in percent; with the number of pairs behind it if that is given."""
    factor, digits = (100, 1) if outcome in _SHARES else (1, 3)
    form = f"{{:{'+' if signed else ''}.{digits}f}}"
    if math.isnan(estimate.value):
        return "–"
    text = form.format(factor * estimate.value)
    if not math.isnan(estimate.low):
        text += f" [{form.format(factor * estimate.low)}, {form.format(factor * estimate.high)}]"
    return text if pairs is None else f"{text} ({pairs})"


def p_text(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2g}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])
