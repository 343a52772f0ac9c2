"""Checkpoints: written, marked and rotated; the best one; and the copies of the run's records in them.

The newest complete one survives a crash at any point. The best is by a metric of the held-out set
(`evaluation.best_by`), never by the training reward. It is in transformers' `TrainerState` (`best_metric`,
`best_global_step`, `log_history`), so it is part of every checkpoint and survives a resume. Nothing here knows TRL.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from covey.model.starter import name_starters
from covey.runlog import names
from covey.runlog.checkpoint import is_complete, mark_complete, unmark
from covey.runlog.directory import RunDirectory
from covey.runlog.files import InBackground, follow_umask
from covey.runlog.metrics import MetricsWriter, Row
from covey.training.checkpoint.finite import FiniteCheck
from covey.training.checkpoint.state import (
    Hyperparameters,
    MovedReference,
    TrainingProgress,
    load_progress,
    save_progress,
)
from covey.training.replaced import all_replaced, replaced

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one trainer.

    The order is: the files are written; `before_marker` is called; then, in the background, the files are synced to the
    disk, their checksums are computed, the marker is written, `after_marker` is called, and last the oldest checkpoints
    are deleted. A process that is killed in between leaves the last complete checkpoint as it was.
    """

    def __init__(self) -> None:
        self.before_marker: list[Callable[[Path], None]] = []
        """Called by the process that writes, with the folder of the checkpoint; may add files to it."""
        self.after_marker: list[Callable[[int, bool], None]] = []
        """Called from another thread once a checkpoint is marked, with its step and whether it is the best so far."""
        self.newest: int | None = None
        """The step of the checkpoint written last since training began, if any."""
        self._work = InBackground()

    @contextmanager
    def writing(
        self, run_dir: Path, args: TrainingArguments, state: TrainerState, barrier: Callable[[], None]
    ) -> Iterator[Path]:
        """Context manager for writing the checkpoint of this step. Waits until the previous one is marked.

        The marker of an older checkpoint in this place is removed first.

        Args:
            run_dir: holds the checkpoints.
            args: for the limit, and whether this process writes.
            state: for the step, and the best checkpoint, which is kept.
            barrier: waits for all processes.

        Yields:
            The folder of the checkpoint.
        """
        folder, limit = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", args.save_total_limit
        if args.should_save:
            self.wait()
            if folder.is_dir():
                unmark(folder)
                shutil.rmtree(folder)
        barrier()
        with self.rotating(args):
            yield folder
        barrier()
        if args.should_save:
            for prepare in self.before_marker:
                prepare(folder)
            best, step = state.best_model_checkpoint, state.global_step
            kept = {folder} if best is None else {folder, run_dir / Path(best).name}
            self._work.add(partial(self._finish, folder, step, state.best_global_step == step, limit, kept))
        self.newest = state.global_step

    @contextmanager
    def rotating(self, args: TrainingArguments) -> Iterator[None]:
        """Context manager: old checkpoints are deleted here, by step, not by transformers, which uses file times."""
        limit, args.save_total_limit = args.save_total_limit, None
        try:
            yield
        finally:
            args.save_total_limit = limit

    def check(self) -> None:
        """Raise an error of the background thread, if any; does not wait."""
        self._work.check()

    def wait(self) -> None:
        """Wait until the newest checkpoint is marked. Raises the error of the background thread, such as a full
        disk."""
        self._work.wait()

    def _finish(self, folder: Path, step: int, is_best: bool, limit: int | None, kept: set[Path]) -> None:
        mark_complete(folder, step)
        for callback in self.after_marker:
            callback(step, is_best)
        if limit:
            _rotate(folder.parent, limit, kept)


class ResumedExactly(Trainer):
    """What Covey's trainers share over transformers': a run stops at values that are not finite, and its checkpoints
    hold what the next step depends on. A comment above each override says why.

    The trainer that has it calls `_begin_checkpoints` at the end of its constructor, and gives its own progress.
    """

    resumed_from: str | None = None
    """The checkpoint that training goes on from."""
    _progress: Callable[[], TrainingProgress]
    """The state after the current step."""
    _restore: Callable[[TrainingProgress, Path], None]
    """Restores that; running totals follow once transformers' loop has reset them."""
    _restored: TrainingProgress | None = None
    _reference: MovedReference | None = None
    _dropout: Sequence[tuple[Any, dict[str, float]]] = ()
    """Configs whose own rates are to be saved, not those that training has."""

    def _begin_checkpoints(self) -> None:
        self.checkpoints = Checkpoints()
        self._finite = FiniteCheck(self.args, self.accelerator, settle=self.checkpoints.wait)

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run, by `max_steps` or by the epochs over the data."""
        return int(self.set_initial_training_values(self.args, self.get_train_dataloader())[-1])

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of one pass over the data."""
        return int(self.set_initial_training_values(self.args, self.get_train_dataloader())[1])

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as transformers does; files are as open as the umask says, and name no place here."""
        with all_replaced(self._dropout):
            super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            follow_umask(folder := Path(output_dir or str(self.args.output_dir)))
            name_starters(folder)

    def load_checkpoint_weights(self, checkpoint: Path) -> None:
        """Load a checkpoint's weights and trainer state without training."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))

    def check_finite(self) -> None:
        """Raise a `TrainingError` if the loss, the gradient norm or a weight was not finite."""
        self._finite.check(self.state.global_step, self.log)

    # -- replaces transformers' `_get_grad_norm`: records on the device whether the norm is finite.
    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        return self._finite.record("grad_norm", super()._get_grad_norm(model, grad_norm=grad_norm))

    # -- replaces `_save_checkpoint`: adds the progress that is left out, then the marker; no model card.
    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        if self.checkpoints.newest == self.state.global_step:
            return  # at the end of a step and of the epoch: nothing has changed since
        self.check_finite()
        self._finite.check_state(self.state.global_step, self.model, self.optimizer)
        run_dir = Path(self._get_output_dir(trial=trial))
        with (
            self.checkpoints.writing(run_dir, self.args, self.state, self.accelerator.wait_for_everyone) as folder,
            replaced(self, create_model_card=lambda **_: None),
        ):
            super()._save_checkpoint(model, trial)
            save_progress(folder, self.args.process_index, self._progress())
            if self._reference is not None:
                self._reference.save(folder)

    # -- replaces transformers' `_finalize_training`, which with save_total_limit=1 keeps the best checkpoint alone.
    def _finalize_training(self, *args: Any) -> Any:
        with self.checkpoints.rotating(self.args):
            return super()._finalize_training(*args)

    # -- replaces transformers' `create_scheduler`, which follows the optimiser's creation: keeps what the config set.
    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        scheduler = super().create_scheduler(*args, **kwargs)
        self._hyperparameters = Hyperparameters(self.optimizer)
        return scheduler

    # -- replaces `_load_optimizer_and_scheduler`: restores the progress, and hyperparameters by the config. The
    #    only hook of a resume between loading the trainer state and reading data.
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self.resumed_from = checkpoint
        if checkpoint is None:
            return
        step = None if (Path(checkpoint) / SCHEDULER_NAME).is_file() else self.state.global_step
        self._hyperparameters.restore(self.optimizer, self.lr_scheduler, step)
        if self._reference is not None:
            self._reference.load(Path(checkpoint))
        progress = load_progress(Path(checkpoint), self.args.process_index, self.accelerator.device)
        if progress is None:
            return  # a checkpoint of stock TRL; `load_progress` has logged a warning
        self._restored = progress
        self._restore(progress, Path(checkpoint))


def _rotate(run_dir: Path, limit: int, kept: set[Path]) -> None:
    """Delete the oldest checkpoints, by their steps, beyond the limit, those that were never finished first; not those
    that are `kept`, nor the newest complete one. `checkpoint-0`, the model before its first step, does not count."""
    found = [path for path in run_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _step(path)]
    by_age = sorted((is_complete(path), _step(path), path) for path in found)
    kept = kept | {path for complete, _, path in by_age[-1:] if complete}
    old = [path for _, _, path in by_age if path not in kept]
    for path in old[: max(0, len(found) - max(limit, len(kept & set(found))))]:
        try:
            unmark(path)
            shutil.rmtree(path)
        except OSError as error:
            logger.warning("%s could not be deleted (%s): delete it to free its space.", path, error.strerror)


def _step(checkpoint: Path) -> int:
    step = checkpoint.name.rpartition("-")[2]
    return int(step) if step.isdecimal() else 0


_EVAL_PREFIX = "eval_"
"""Of metrics of the held-out problems in `TrainerState.log_history`, and in the `metrics` of `on_evaluate`."""


def event_metrics(row: Mapping[str, object]) -> dict[str, float]:
    """The metrics of an evaluation's main set under transformers' names: `eval_accuracy`, `eval_reward`, …"""
    group = names.eval_name(next(iter(names.held_out_sets([row])), names.TEST_SET), "")
    found = {name.removeprefix(group): value for name, value in row.items() if name.startswith(group)}
    return {f"{_EVAL_PREFIX}{name}": float(value) for name, value in found.items() if isinstance(value, int | float)}


def deciding_metric(row: Mapping[str, object], best_by: str | None) -> str | None:
    """Which of the `event_metrics` decides which checkpoint is the best; None if the evaluation does not have it."""
    name = names.best_metric([row], best_by)
    return None if name is None else _EVAL_PREFIX + name.partition("/")[2]


def note_evaluation(state: TrainerState, metric: str, value: float) -> None:
    """Add an evaluation to the state's history, as transformers does: one mapping with the step.

    An entry of the same step is replaced: after a resume, the evaluation may run again.
    """
    state.log_history[:] = [
        entry for entry in state.log_history if not is_evaluation(entry) or entry.get("step", 0) < state.global_step
    ]
    state.log_history.append({metric: value, "step": state.global_step})


def is_evaluation(entry: Mapping[str, object]) -> bool:
    """Whether an entry of the state's history is from `note_evaluation`."""
    return any(name.startswith(_EVAL_PREFIX) for name in entry)


def evaluated(state: TrainerState) -> list[tuple[int, float]]:
    """Step and value of every evaluation so far, in order, by the metric of the newest one."""
    entries = [entry for entry in state.log_history if is_evaluation(entry)]
    metric = next((name for entry in entries[-1:] for name in entry if name.startswith(_EVAL_PREFIX)), None)
    return [(int(entry["step"]), float(entry[metric])) for entry in entries if metric in entry]


def is_new_best(state: TrainerState) -> bool:
    """Whether the newest evaluation is the best of the run after its first step; if so, it is stored in the state.

    Of equal ones the earlier stays. The model before training has no checkpoint, so it does not count. A best by
    another metric, of an older version or config, does not count either.
    """
    known = dict(evaluated(state))
    if not state.global_step or state.global_step not in known:
        return False
    value = known[state.global_step]
    if state.best_global_step in known and state.best_metric is not None and value <= state.best_metric:
        return False
    state.best_metric, state.best_global_step = value, state.global_step
    return True


def recall_best(state: TrainerState, run: RunDirectory) -> int | None:
    """After a resume: keep the best checkpoint if it exists, else forget it. Returns its step."""
    if not state.best_global_step:
        return None
    if is_complete(run.checkpoint(state.best_global_step)):
        state.best_model_checkpoint = str(run.checkpoint(state.best_global_step))
        return int(state.best_global_step)
    # The run was started from a checkpoint of another one, or it was deleted.
    state.best_metric = state.best_global_step = state.best_model_checkpoint = None
    return None


def link_best(run: RunDirectory, step: int, is_best: bool) -> None:
    """Link the checkpoint of this step, which is now complete, if it is the best."""
    if is_best:
        run.link_best(step)


def relink_best(state: TrainerState, run: RunDirectory) -> None:
    """After a resume: link `best_model` again. The process may have been killed before it made the link."""
    best = recall_best(state, run)
    if best is not None and state.is_world_process_zero:
        run.link_best(best)


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
