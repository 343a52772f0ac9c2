"""The top of the report: the run's status, its accuracy before and after, and its key settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.report.charts.panels import set_label
from covey.report.charts.series import format_value
from covey.report.load import RunRecord
from covey.report.summary import best_row
from covey.runlog import names
from covey.runlog.metrics import Row, series


@dataclass(frozen=True, slots=True)
class Gain:
    """Accuracy on one held-out set in percent, first and last evaluation; each with its 95% interval."""

    label: str
    before: tuple[float, float, float]
    after: tuple[float, float, float]
    steps: tuple[int, int]

    @property
    def points(self) -> float:
        return self.after[0] - self.before[0]

    @property
    def intervals_disjoint(self) -> bool:
        """Whether the two intervals do not overlap."""
        return self.after[1] > self.before[2] or self.after[2] < self.before[1]


def gains(rows: Sequence[Row]) -> list[Gain]:
    """First and last evaluation on every held-out set that was evaluated at least twice."""
    found = []
    for held_out in names.held_out_sets(rows):
        evaluated = [row for row in rows if None not in names.accuracy(row, held_out)]
        if len(evaluated) < 2:
            continue
        first, last = evaluated[0], evaluated[-1]
        before, after = (tuple(100 * figure for figure in names.accuracy(row, held_out)) for row in (first, last))
        found.append(Gain(set_label(held_out), before, after, (first[names.STEP], last[names.STEP])))
    return found


def how_it_ended(record: RunRecord) -> tuple[str, str]:
    """The status (`finished`, `running` or `stopped`), and a sentence about it."""
    of = f" of {record.max_steps}" if record.max_steps else ""
    if record.run.is_locked():
        return "running", f"At step {record.step}{of} when this page was written."
    if record.summary or record.run.final_model.is_dir() or (record.max_steps and record.step >= record.max_steps):
        seconds = record.summary.get("training_seconds")
        took = f" in {_duration(seconds)}" if isinstance(seconds, int | float) else ""
        return "finished", f"Finished after {record.step} steps{took}."
    return "stopped", f"Stopped after step {record.step}{of}; the same command resumes from its newest checkpoint."


def key_settings(record: RunRecord) -> list[tuple[str, str]]:
    """The key settings and totals of the run, as name and value; unknown ones are left out."""
    config, training = record.config, record.config.get("training") or {}
    rewards, objective = config.get("rewards") or {}, config.get("objective") or {}
    weights = training.get("reward_weights")
    functions = [str(name) for name in rewards.get("funcs") or ()]
    if weights and len(weights) == len(functions):
        functions = [f"{name} × {weight:g}" for name, weight in zip(functions, weights, strict=True)]
    packages = record.environment.get("packages") or {}
    seconds = sum(value for _, value in series(record.rows, names.STEP_TIME))
    memory = [max((v for _, v in series(record.rows, key)), default=0.0) for key in _MEMORY]
    listed = {
        "objective": objective.get("name"),
        "rewards": ", ".join(functions),
        "completions per prompt": training.get("num_generations"),
        "learning rate": training.get("learning_rate"),
        "β": training.get("beta"),
        "best checkpoint": _best(record),
        "seed": config.get("seed"),
        "total step time": _duration(seconds) if seconds else None,
        "peak memory": " + ".join(format_value(value, "bytes") for value in memory if value) or None,
        "Covey, TRL, PyTorch": ", ".join(str(packages.get(name) or "–") for name in ("covey", "trl", "torch"))
        if packages
        else None,
        "commit": _commit(record.environment),
    }
    return [
        (name, f"{value:g}" if isinstance(value, float) else str(value))
        for name, value in listed.items()
        if value not in (None, "")
    ]


_MEMORY = (names.PROCESS_MEMORY, names.DEVICE_MEMORY)


def _best(record: RunRecord) -> str | None:
    row = best_row(record.run, record.rows)
    if row is None:
        return None
    accuracy = row[names.eval_name(names.held_out_sets(record.rows)[0], names.ACCURACY)]
    return f"step {row[names.STEP]}: {format_value(accuracy, 'percent')} held-out"


def _commit(environment: Mapping[str, Any]) -> str | None:
    commit = environment.get("git_commit")
    return (
        f"{commit[:10]}{' + changes' if environment.get('git_modified') else ''}" if isinstance(commit, str) else None
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
