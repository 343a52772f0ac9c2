"""The best checkpoint of a run: by accuracy on the held-out set, never by the training reward.

The state is in transformers' `TrainerState` (`best_metric`, `best_global_step`, `log_history`), so it is part of every
checkpoint and survives a resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerState

from covey.runlog import names
from covey.runlog.checkpoint import is_complete
from covey.runlog.directory import RunDirectory

if TYPE_CHECKING:
    from transformers import Trainer

METRIC = "eval_accuracy"
"""The name of the accuracy in `TrainerState.log_history`, and in the `metrics` of `on_evaluate`."""


def selection_accuracy(row: Mapping[str, object]) -> float | None:
    """The accuracy that decides which checkpoint is the best, from an evaluation's row; None if there is none."""
    sets = names.held_out_sets([row])
    value = row.get(names.eval_name(sets[0], names.ACCURACY)) if sets else None
    return float(value) if isinstance(value, int | float) else None


def note_evaluation(state: TrainerState, metrics: Mapping[str, float]) -> None:
    """Add an evaluation to the state's history, as transformers does: one mapping with the step.

    An entry of the same step is replaced: after a resume, the evaluation may run again.
    """
    state.log_history[:] = [
        entry for entry in state.log_history if not (METRIC in entry and entry.get("step", 0) >= state.global_step)
    ]
    state.log_history.append({**metrics, "step": state.global_step})


def evaluated(state: TrainerState) -> list[tuple[int, float]]:
    """Step and accuracy of every evaluation so far, in order."""
    return [(int(entry["step"]), float(entry[METRIC])) for entry in state.log_history if METRIC in entry]


def is_new_best(state: TrainerState, accuracy: float | None) -> bool:
    """Whether this is the highest accuracy of the run after its first step; if so, it is stored in the state.

    Of equal ones the earlier stays. The model before training has no checkpoint, so it does not count.
    """
    if accuracy is None or not state.global_step:
        return False
    if state.best_global_step and state.best_metric is not None and accuracy <= state.best_metric:
        return False
    state.best_metric, state.best_global_step = accuracy, state.global_step
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


def fire_on_evaluate(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Fire `on_evaluate`, so that any callback sees evaluations as under transformers."""
    trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)


def broadcast_from_main(row: dict[str, Any]) -> dict[str, Any]:
    """The main process's row, in every process: they must agree on what is saved and when to stop."""
    return dict(broadcast_object_list([row])[0])
