"""`results.csv`, one line per run, and `results.md`, its means with intervals over the seeds."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from covey.evaluation.estimators import Estimate, mean, t_estimate

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


def write_csv(results: Sequence[Result], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [item.name for item in fields(Result)], lineterminator="\n")
        writer.writeheader()
        for one in results:
            writer.writerow({key: _cell(value) for key, value in asdict(one).items()})


def read_csv(path: Path) -> list[Result]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Result(row["arm"], int(row["seed"]), *(float(row[item.name]) for item in fields(Result)[2:]))
            for row in csv.DictReader(file)
        ]


def by_seed(results: Sequence[Result], arm: str, measure: str) -> dict[int, float]:
    """One figure of an arm by seed."""
    return {one.seed: getattr(one, measure) for one in results if one.arm == arm}


def over_seeds(results: Sequence[Result], arm: str, measure: str) -> Estimate:
    """Mean over seeds and its 95% t interval."""
    return t_estimate(list(by_seed(results, arm, measure).values()))


def difference(results: Sequence[Result], arm: str, measure: str, baseline: str = BASELINE) -> Estimate:
    """Mean over the seeds that both arms have of the difference to the baseline, and its paired 95% t interval."""
    these, those = by_seed(results, arm, measure), by_seed(results, baseline, measure)
    return t_estimate([these[seed] - those[seed] for seed in sorted(these.keys() & those.keys())])


def page(results: Sequence[Result]) -> str:
    """The text of `results.md`."""
    arms = list(dict.fromkeys(one.arm for one in results if one.arm != START))
    headings = ["arm", "seeds", *(heading for heading, _, _ in MEASURES.values())]
    start = [one for one in results if one.arm == START]
    rows = [[START, "", *(_shown(mean_of(start, measure), measure) for measure in MEASURES)]] if start else []
    for arm in arms:
        seeds = str(len(by_seed(results, arm, "accuracy")))
        cells = [_interval(over_seeds(results, arm, measure), measure) for measure in MEASURES]
        rows.append([arm, seeds, *cells])
    differences = [
        [arm, *(_interval(difference(results, arm, measure), measure, signed=True) for measure in MEASURES)]
        for arm in arms
        if arm != BASELINE
    ]
    return (
        "\n\n".join(
            [
                "# Results",
                "Written by run.py from results.csv; README.md says what the columns mean. Means over seeds with 95% t "
                "intervals. Accuracy and pass@8 in percent, entropy in nats per token.",
                _table(headings, rows),
                f"## Differences to {BASELINE}, paired by seed",
                "An interval without 0 says that the difference is more than the chance of seeds. With this many, "
                "expect about one interval in twenty to miss 0 by luck.",
                _table([headings[0], *headings[2:]], differences),
            ]
        )
        + "\n"
    )


def mean_of(results: Sequence[Result], measure: str) -> float:
    return mean([getattr(one, measure) for one in results])


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


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
