"""The report's table of problems with several right answers: how many of them a run finds, beside random answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.evaluation.estimators import Estimate
from covey.evaluation.figures import UNDEFINED, estimate_text, value_text
from covey.runlog import names
from covey.runlog.metrics import Row

_SHOWN = (
    (names.COVERAGE, "share of the right answers"),
    (names.DISTINCT, "different right answers"),
    (names.DISTINCT_IF_SOLVED, "different right answers, if one is right"),
)


@dataclass(frozen=True, slots=True)
class ModesRow:
    """One figure of one held-out set."""

    set_name: str
    """As users read it."""
    figure: str
    """Its name, as `coverage@8`."""
    meaning: str
    first: str
    """At the first evaluation, with its interval."""
    last: str
    chance: str
    """What random well-formed answers reach."""
    steps: tuple[int, int]


def modes_rows(rows: Sequence[Row]) -> list[ModesRow]:
    """The figures of the largest k, for each held-out set; empty for a run whose problems have no known modes."""
    found = []
    for held_out in names.held_out_sets(rows):
        for kind, meaning in _SHOWN:
            metric = largest_k(rows, held_out, kind)
            there = [row for row in rows if metric and row.get(names.eval_name(held_out, metric)) is not None]
            if metric is None or not there:
                continue
            chance = there[-1].get(names.eval_name(held_out, names.CHANCE + metric))
            first, last = (estimate_text(_estimate(row, held_out, metric), metric) for row in (there[0], there[-1]))
            random = UNDEFINED if chance is None else value_text(float(chance), metric)
            steps = int(there[0][names.STEP]), int(there[-1][names.STEP])
            found.append(ModesRow(names.set_label(held_out), metric, meaning, first, last, random, steps))
    return found


def largest_k(rows: Sequence[Row], held_out: str, kind: str) -> str | None:
    """The metric of this kind with the largest k, as `coverage@8`; None without one."""
    start = names.eval_name(held_out, f"{kind}@")
    ks = {name.removeprefix(start) for name in names.logged(rows) if name.startswith(start)}
    whole = [int(k) for k in ks if k.isdigit()]
    return f"{kind}@{max(whole)}" if whole else None


def _estimate(row: Mapping[str, Any], held_out: str, metric: str) -> Estimate:
    value, low, high = (row.get(names.eval_name(held_out, metric + end)) for end in ("", "_low", "_high"))
    return Estimate(*(math.nan if one is None else float(one) for one in (value, low, high)))
