"""A run's summary: held-out accuracy of its first and last evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from covey.report.evaluations import evaluation_rows
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.files import write_atomically
from covey.runlog.metrics import Row, read_metrics

_LABELS = {names.TEST_SET: "held-out accuracy", names.HARD_SET: "on the harder set"}

Triple = tuple[float, float, float]
"""A value and its 95% interval."""


def before_and_after(run: RunDirectory) -> list[tuple[str, Triple, Triple]]:
    """Held-out accuracy of the first and the last evaluation, one row per held-out set evaluated at least twice.

    If the best checkpoint is not the last step's, another row has its accuracy.
    """
    rows = read_metrics(run.metrics)
    sets = names.held_out_sets(rows)
    table = []
    for held_out in sets:
        evaluated = [row for row in rows if row.get(names.eval_name(held_out, "accuracy")) is not None]
        if len(evaluated) >= 2:
            label = _LABELS.get(held_out, f"accuracy on {held_out}")
            first, last = names.accuracy(evaluated[0], held_out), names.accuracy(evaluated[-1], held_out)
            table.append((label, first, last))
            best = best_row(run, rows) if held_out == sets[0] else None
            if best is not None and best[names.STEP] != evaluated[-1][names.STEP]:
                table.append((f"best, at step {best[names.STEP]}", first, names.accuracy(best, held_out)))
    return table


def best_row(run: RunDirectory, rows: Sequence[Row]) -> Row | None:
    """The metrics of the step whose checkpoint `best_model` links to; None if there is none."""
    best = run.best_checkpoint()
    if best is None:
        return None
    step = int(best.name.rpartition("-")[2])
    accuracy = names.eval_name(next(iter(names.held_out_sets(rows)), names.TEST_SET), names.ACCURACY)
    return next((row for row in rows if row[names.STEP] == step and row.get(accuracy) is not None), None)


def write_summary(
    run: RunDirectory, rows: list[tuple[str, Triple, Triple]], seconds: float, peak_memory_bytes: int
) -> None:
    """Write `summary.json`: the same numbers for programs."""
    best = run.best_checkpoint()
    summary: dict[str, Any] = {
        "training_seconds": round(seconds, 1),
        "peak_memory_bytes": peak_memory_bytes,
        "held_out": [
            {"name": label, "before": dict(zip(_KEYS, b, strict=True)), "after": dict(zip(_KEYS, a, strict=True))}
            for label, b, a in rows
        ],
        "evaluations": [
            {"name": row.set_name, "weights": row.state, "folder": row.folder, **_finite(row.accuracy)}
            for row in evaluation_rows(run)
        ],
        "best_checkpoint": None if best is None else best.name,
    }
    write_atomically(run.summary, json.dumps(summary, indent=2) + "\n")


def summary_line(step: int, seconds: float, peak_memory_bytes: int) -> str:
    """Steps, time and memory in one line."""
    minutes, rest = divmod(round(seconds), 60)
    memory = peak_memory_bytes / 1e9
    return f"{step} steps, {minutes} min {rest:02d} s of training here, {memory:.1f} GB peak memory."


_KEYS = ("accuracy", "low", "high")


def _finite(triple: Triple) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in zip(_KEYS, triple, strict=True)}
