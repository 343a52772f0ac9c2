"""Copies of the run's records in a checkpoint, and restoring damaged records from them."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.metrics import MetricsWriter, Row
from covey.training.checkpoint.best import is_evaluation

logger = logging.getLogger(__name__)


def copy_records(run: RunDirectory, checkpoint: Path) -> None:
    """Copy the run's metrics and config into a checkpoint that is about to be marked."""
    copies = run.records_in(checkpoint)
    copies.root.mkdir(exist_ok=True)
    for file, copy in ((run.metrics, copies.metrics), (run.config, copies.config)):
        if file.is_file():
            shutil.copyfile(file, copy)


def open_metrics(
    run: RunDirectory, keep_until: int | None, checkpoint: Path | None
) -> tuple[MetricsWriter, tuple[str, ...]]:
    """The writer of a run's metrics. Rows lost from its file are restored.

    Args:
        run: whose metrics are written.
        keep_until: the step to resume from; None for a new run.
        checkpoint: to resume from; its records are used if it belongs to this run.

    Returns:
        The writer, and sentences on what was restored or lost.
    """
    if checkpoint is None or checkpoint.resolve().parent != run.root.resolve():
        return MetricsWriter(run.metrics, keep_until), ()
    copy = run.records_in(checkpoint).metrics
    if copy.is_file():
        writer = MetricsWriter(run.metrics, keep_until, copy=copy)
    else:  # written by a version without copies
        writer = MetricsWriter(run.metrics, keep_until, logged=logged_rows(checkpoint))
    for repair in writer.repairs:
        logger.warning("%s", repair)
    return writer, tuple(writer.repairs)


def logged_rows(checkpoint: Path) -> list[Row]:
    """The metrics in a checkpoint's trainer state, up to its step, as rows of the run log.

    Evaluations are left out: the state has only the metric that decides the best one.
    """
    rows: dict[int, Row] = {}
    try:
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    except (OSError, ValueError, TypeError):
        return []
    for entry in state.log_history:
        logged = {name: value for name, value in entry.items() if name != names.STEP}
        if is_evaluation(entry) or not logged:
            continue
        rows.setdefault(int(entry[names.STEP]), {names.STEP: int(entry[names.STEP])}).update(names.train_row(logged))
    return [rows[step] for step in sorted(rows)]
