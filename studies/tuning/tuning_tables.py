"""`results.csv`, one line per run; `results.md`, its means with intervals over the seeds; and their plot."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from matplotlib.figure import Figure

from covey.evaluation.estimators import Estimate, mean, t_estimate

BASELINE = "default"


@dataclass(frozen=True, slots=True)
class Result:
    """One run: held-out accuracy, and means of its last ten training steps."""

    arm: str
    seed: int
    before: float
    """Held-out accuracy before training."""
    accuracy: float
    """Held-out accuracy after training."""
    reward: float
    """Of the training completions."""
    entropy: float
    """Of the policy's distribution at a completion's tokens, in nats."""
    kl: float | None
    """From the reference model, in nats per token; None without one (β = 0)."""
    truncated: float
    """Share of completions cut at the longest length; of the first ten steps."""
    seconds: float
    """Of training."""


MEASURES = {
    "reward": ("reward", 1.0, "{:.2f}"),
    "entropy": ("entropy", 1.0, "{:.3f}"),
    "kl": ("KL", 1.0, "{:.3f}"),
    "truncated": ("truncated at first", 100.0, "{:.0f}%"),
}
"""What the report of a run shows beside the accuracy: field, heading, factor, format."""


def write_csv(results: Sequence[Result], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [item.name for item in fields(Result)], lineterminator="\n")
        writer.writeheader()
        for one in results:
            writer.writerow({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in asdict(one).items()})


def read_csv(path: Path) -> list[Result]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Result(
                row["arm"],
                int(row["seed"]),
                *(float(row[item.name]) if row[item.name] else None for item in fields(Result)[2:]),  # type: ignore[arg-type]
            )
            for row in csv.DictReader(file)
        ]


def differences(results: Sequence[Result], arm: str) -> list[float]:
    """Accuracy after training, less that of the default with the same seed."""
    these, those = ({one.seed: one.accuracy for one in results if one.arm == name} for name in (arm, BASELINE))
    return [these[seed] - those[seed] for seed in sorted(these.keys() & those.keys())]


def table(results: Sequence[Result]) -> str:
    """The table of all settings."""
    arms = list(dict.fromkeys(one.arm for one in results))
    headings = ["setting", "seeds", "accuracy", "difference to the default", *(one[0] for one in MEASURES.values())]
    rows = [headings, ["---"] * len(headings)]
    for arm in arms:
        runs = [one for one in results if one.arm == arm]
        pairs = differences(results, arm)
        rows.append(
            [
                f"`{arm}`" if arm != BASELINE else arm,
                str(len(runs)),
                _interval(t_estimate([one.accuracy for one in runs])),
                _interval(t_estimate(pairs), signed=True) if arm != BASELINE and pairs else "",
                *(_mean(runs, measure) for measure in MEASURES),
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows).replace("| --- ", "|---").replace("--- |", "---|")


def page(results: Sequence[Result]) -> str:
    """The text of `results.md`."""
    before = t_estimate([one.before for one in results if one.arm == BASELINE])
    parts = [
        "# Results",
        "Written by sweep.py from results.csv; README.md says what was run. Accuracy in percent of the held-out "
        "problems after training; in brackets 95% intervals over seeds (Student's t), for differences paired by seed. "
        f"Before training: {_interval(before)}. The other columns are what a run's report shows, as means over "
        "seeds: of the last ten steps, truncation of the first ten.",
        table(results),
        "An interval of a difference that misses 0 says that the setting matters more than the seed. With so many "
        "settings, about one in twenty misses it by luck.",
    ]
    return "\n\n".join(parts) + "\n"


def draw(results: Sequence[Result], target: Path) -> None:
    """The differences with their intervals, and a dot for each seed."""
    arms = [arm for arm in dict.fromkeys(one.arm for one in results) if arm != BASELINE]
    figure = Figure(figsize=(8, 0.36 * len(arms) + 1.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="#6b7785", linewidth=1)
    for place, arm in enumerate(reversed(arms)):
        pairs = [100 * pair for pair in differences(results, arm)]
        if not pairs:
            continue
        estimate = t_estimate(pairs)
        axes.scatter(pairs, [place] * len(pairs), color="#d9730d", s=12, alpha=0.6, zorder=3)
        if len(pairs) > 1:
            axes.plot([estimate.low, estimate.high], [place, place], color="#119c94", linewidth=2.5)
        axes.plot(estimate.value, place, "o", color="#119c94", markersize=6)
    axes.set_yticks(range(len(arms)), list(reversed(arms)))
    axes.set_xscale("symlog", linthresh=10)
    ticks = [-80, -40, -20, -10, -5, 0, 5, 10]
    axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axes.set_xlabel("held-out accuracy less the default's, points\n(lines: 95% t intervals; small dots: seeds)")
    axes.grid(axis="x", color="#e3e8ed")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(target)


def _interval(estimate: Estimate, *, signed: bool = False) -> str:
    value, low, high = (100 * one for one in (estimate.value, estimate.low, estimate.high))
    form = "{:+.1f}" if signed else "{:.1f}"
    return form.format(value) if low != low else f"{form.format(value)} [{form.format(low)}, {form.format(high)}]"


def _mean(runs: Sequence[Result], measure: str) -> str:
    _, factor, form = MEASURES[measure]
    values = [getattr(one, measure) for one in runs]
    return "" if None in values else form.format(factor * mean(values))
