"""Writes `results.md`, the means and differences of `results.csv` (one line a run) with intervals over the seeds.

python studies/maxent/tables.py
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from covey.evaluation.estimators import Estimate, mean, standard_error, t_estimate, t_p_value
from covey.evaluation.paired import holm
from covey.runlog import write_atomically

HERE = Path(__file__).resolve().parent
BASELINE = "grpo"
START = "start"
"""The arm that is the model before training; it has one line, of seed -1."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run, after training."""

    arm: str
    seed: int
    accuracy: float
    pass_at_8: float
    distinct: float
    entropy: float
    """Of the policy's distribution at a completion's tokens, in nats; mean over the last ten steps."""
    truncated: float
    seconds: float
    """Of training, with the evaluations in between."""


MEASURES = {
    "accuracy": ("accuracy", 100.0, "{:.1f}"),
    "pass_at_8": ("pass@8", 100.0, "{:.1f}"),
    "distinct": ("distinct right answers", 1.0, "{:.2f}"),
    "entropy": ("entropy", 1.0, "{:.3f}"),
}
"""The columns of the tables: field, heading, factor, format. Shares are shown in percent."""


def read_csv(path: Path) -> list[Result]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Result(row["arm"], int(row["seed"]), *(float(row[item.name]) for item in fields(Result)[2:]))
            for row in csv.DictReader(file)
        ]


def by_seed(results: Sequence[Result], arm: str, measure: str) -> dict[int, float]:
    """One figure of an arm by seed."""
    return {one.seed: getattr(one, measure) for one in results if one.arm == arm}


def gaps(results: Sequence[Result], arm: str, measure: str) -> list[float]:
    """The differences of an arm to the baseline, seed by seed."""
    these, those = by_seed(results, arm, measure), by_seed(results, BASELINE, measure)
    return [these[seed] - those[seed] for seed in sorted(these.keys() & those.keys())]


def page(results: Sequence[Result]) -> str:
    """The text of `results.md`."""
    arms = list(dict.fromkeys(one.arm for one in results if one.arm != START))
    headings = ["arm", "seeds", *(heading for heading, _, _ in MEASURES.values())]
    start = [one for one in results if one.arm == START]
    rows = [
        [START, "", *(_shown(mean([getattr(one, measure) for one in start]), measure) for measure in MEASURES)]
        for _ in start[:1]
    ]
    for arm in arms:
        values = {measure: list(by_seed(results, arm, measure).values()) for measure in MEASURES}
        cells = (_interval(t_estimate(found), measure) for measure, found in values.items())
        rows.append([arm, str(len(values["accuracy"])), *cells])
    others = [arm for arm in arms if arm != BASELINE]
    columns = []
    for measure in MEASURES:
        found = [gaps(results, arm, measure) for arm in others]
        adjusted = holm([_p_value(one) for one in found])
        columns.append(
            [
                f"{_interval(t_estimate(one), measure, signed=True)}, {p:.2g}"
                for one, p in zip(found, adjusted, strict=True)
            ]
        )
    return (
        "\n\n".join(
            [
                "# Results",
                "Written by tables.py from results.csv; README.md says what the columns mean. Means over seeds with "
                "95% t intervals. Accuracy and pass@8 in percent, entropy in nats per token.",
                _table(headings, rows),
                f"## Differences to {BASELINE}, paired by seed",
                "With the p-value of a paired t test after Holm's correction over the arms of an outcome; the "
                "intervals are not corrected.",
                _table([headings[0], *headings[2:]], [list(row) for row in zip(others, *columns, strict=True)]),
            ]
        )
        + "\n"
    )


def _p_value(differences: Sequence[float]) -> float:
    error = standard_error(differences)
    if error == 0:
        return 0.0 if any(differences) else 1.0
    return t_p_value(mean(differences) / error, len(differences) - 1)


def _shown(value: float, measure: str, *, signed: bool = False) -> str:
    _, factor, form = MEASURES[measure]
    text = form.format(factor * value)
    return f"+{text}" if signed and value >= 0 else text


def _interval(estimate: Estimate, measure: str, *, signed: bool = False) -> str:
    value, low, high = (_shown(one, measure, signed=signed) for one in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])


if __name__ == "__main__":
    write_atomically(HERE / "results.md", page(read_csv(HERE / "results.csv")))
