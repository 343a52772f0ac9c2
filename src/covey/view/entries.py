"""One line of the list of runs: what a run is, how far it has come, and its newest held-out figure."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from covey.errors import CoveyError, RunDirectoryError, one_line
from covey.evaluation.comparison import metric_of
from covey.report.charts.chart_data import axes
from covey.report.headline import how_it_ended
from covey.report.load import RunRecord, data_of, model_of, read_run
from covey.report.summary import evaluations, figure_of
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.ending import FAILED, FINISHED
from covey.runlog.evaluations import is_evaluation, read_evaluation, training_file
from covey.runlog.files import parse_json
from covey.runlog.tags import Tags, read_tags

TRAINING, PREPARING, STOPPED, EVALUATING = "training", "preparing", "stopped", "evaluating"
"""Statuses, besides finished and failed. An evaluation is evaluating, finished or stopped."""

DAMAGED = (
    *(CoveyError, ArithmeticError, AttributeError, LookupError, MemoryError),
    *(OSError, RecursionError, TypeError, ValueError),
)
"""What reading the files of a run can raise: any program may have written them."""


def damage_text(run: object, error: Exception) -> str:
    """What a page says of an error of reading the files of a run."""
    return f"A file of the run {run} cannot be read ({one_line(error)}): it was cut short or changed."


@contextlib.contextmanager
def damage_reported(run: object) -> Iterator[None]:
    """Turn every error of reading the files of a run into a RunDirectoryError.

    Args:
        run: its name or folder, for the message.
    """
    try:
        yield
    except CoveyError:
        raise
    except DAMAGED as error:
        raise RunDirectoryError(damage_text(run, error)) from error


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run, or one evaluation outside of a run; unknown values are None."""

    id: str
    """Its path relative to the folder that was searched."""
    name: str
    path: str
    kind: str = "run"
    """`run` or `evaluation`."""
    status: str = STOPPED
    message: str | None = None
    """Why it failed, or why it cannot be read."""
    model: str | None = None
    data: str | None = None
    objective: str | None = None
    step: int | None = None
    max_steps: int | None = None
    metric: str | None = None
    """The held-out metric that decides the best evaluation, by its name after `eval/`."""
    grader: str | None = None
    """Of an accuracy."""
    value: float | None = None
    """At the last evaluation, with its 95% interval and the number of problems."""
    low: float | None = None
    high: float | None = None
    problems: int | None = None
    best: dict[str, float] | None = None
    """Step and value of the best evaluation, if it is above the first."""
    tokens: int | None = None
    """Tokens of prompts and completions, in training."""
    seconds: float | None = None
    """Of all steps and evaluations, over all invocations."""
    started: str | None = None
    """The first start, in ISO 8601."""
    tags: tuple[str, ...] = ()
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`, also strictly: what is not finite is None."""
        return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in asdict(self).items()}


def entry_of(folder: Path, identity: str) -> Entry:
    """The entry of a run or evaluation; of one that cannot be read, with the reason as its message."""
    own: dict[str, Any] = {"id": identity, "name": folder.absolute().name, "path": str(folder)}
    try:
        noted = read_tags(folder)
    except CoveyError as error:
        logger.warning("%s", error)
        noted = Tags()
    own |= asdict(noted)
    try:
        with damage_reported(folder):
            found = _evaluation(folder) if is_evaluation(folder) else _run(read_run(folder))
    except CoveyError as error:
        found = {"status": FAILED, "message": str(error)}
    return Entry(**own, **found)


def _text(value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def _run(record: RunRecord) -> dict[str, Any]:
    status, message = _status(record)
    config, spent = record.config, axes(record.rows)
    return {
        "status": status,
        "message": message,
        "model": _text(model_of(config)),
        "data": _text(data_of(config)),
        "objective": _text((config.get("objective") or {}).get("name")),
        "step": record.step,
        "max_steps": record.max_steps,
        "tokens": int(spent["tokens"][-1]) if spent["tokens"] else None,
        "seconds": spent["seconds"][-1] if spent["seconds"] else None,
        "started": _started(record),
        **_held_out(record),
    }


def _status(record: RunRecord) -> tuple[str, str | None]:
    status, _ = how_it_ended(record)
    if status == "running":
        return (TRAINING if record.rows else PREPARING), None
    return status, _text(record.summary.get("message")) if status == FAILED else None


def _held_out(record: RunRecord) -> dict[str, Any]:
    metric = record.metric
    found = evaluations(record) if metric else []
    if metric is None or not found:
        return {}
    held_out = names.held_out_sets(record.rows)[0]
    key = names.eval_name(held_out, metric)
    figure = figure_of(found[-1], held_out, metric)
    values = [(float(row[key]), int(row[names.STEP])) for row in found]
    best, step = max(values, key=lambda one: one[0] if math.isfinite(one[0]) else -math.inf)
    return {
        "metric": metric,
        "grader": record.grader if metric == names.ACCURACY else None,
        "value": figure.value,
        "low": figure.low,
        "high": figure.high,
        "problems": _problems(training_file(record.run.root, held_out, int(found[-1][names.STEP]))),
        "best": {"step": step, "value": best} if math.isfinite(best) and best > values[0][0] else None,
    }


def _problems(file: Path) -> int | None:
    """The number of problems of an evaluation of training: they are numbered from 0, and in order."""
    last = file.read_bytes().rstrip().rpartition(b"\n")[2] if file.is_file() else b""
    try:
        return int(parse_json(last)["problem"]) + 1
    except (ValueError, LookupError, TypeError):  # missing, or damaged, which a comparison reports
        return None


def _started(record: RunRecord) -> str | None:
    """From `environment.json`; of a run by an older version, the time of its config."""
    started = record.environment.get("started")
    if isinstance(started, str):
        return started
    config = record.run.config
    if not config.is_file():
        return None
    return datetime.fromtimestamp(config.stat().st_mtime, UTC).isoformat(timespec="seconds")


def _evaluation(folder: Path) -> dict[str, Any]:
    stored = read_evaluation(folder)
    settings, metric = stored.settings, metric_of(stored)
    figure = stored.summary.get(metric, {})
    busy = RunDirectory(folder).is_locked()
    return {
        "kind": "evaluation",
        "status": FINISHED if stored.done else EVALUATING if busy else STOPPED,
        "model": _text((settings.get("model") or {}).get("id")),
        "data": _text(settings.get("name")),
        "metric": metric,
        "grader": _text(settings.get("grader")),
        "problems": int((settings.get("data") or {}).get("problems") or 0) or None,
        "started": _text((settings.get("environment") or {}).get("started")),
        **figure,
    }
