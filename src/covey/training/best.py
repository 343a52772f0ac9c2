"""Which checkpoint of a run is the best: by accuracy on the held-out problems, never by the training reward.

What is remembered lies in transformers' own `TrainerState` (`best_metric`, `best_global_step`, `log_history`), so that
it is part of every checkpoint, and a resumed run goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerState

from covey.runlog import names
from covey.runlog.directory import RunDirectory, is_whole

if TYPE_CHECKING:
    from covey.training.trainer import GRPOTrainer

METRIC = "eval_accuracy"
"""What the accuracy is called in `TrainerState.log_history`, and in the `metrics` of `on_evaluate`."""


def judged_by(row: Mapping[str, object]) -> float | None:
    """The accuracy that a run is judged by, out of an evaluation's figures; None where it has none."""
    sets = names.held_out_sets([row])
    value = row.get(names.eval_name(sets[0], names.ACCURACY)) if sets else None
    return float(value) if isinstance(value, int | float) else None


def note_evaluation(state: TrainerState, figures: Mapping[str, float]) -> None:
    """Add an evaluation to the state's history, as transformers does: one mapping with the step.

    An entry of the same step is replaced: an evaluation that is made again after a resume.
    """
    state.log_history[:] = [
        entry for entry in state.log_history if not (METRIC in entry and entry.get("step", 0) >= state.global_step)
    ]
    state.log_history.append({**figures, "step": state.global_step})


def evaluated(state: TrainerState) -> list[tuple[int, float]]:
    """Step and accuracy of every evaluation so far, in order."""
    return [(int(entry["step"]), float(entry[METRIC])) for entry in state.log_history if METRIC in entry]


def is_new_best(state: TrainerState, accuracy: float | None) -> bool:
    """Whether this is the highest accuracy of the run after its first step; if so, the state says it from now on.

    Of equal ones the earlier stays. The model before training has no checkpoint, and so does not count.
    """
    if accuracy is None or not state.global_step:
        return False
    if state.best_global_step and state.best_metric is not None and accuracy <= state.best_metric:
        return False
    state.best_metric, state.best_global_step = accuracy, state.global_step
    return True


def recall_best(state: TrainerState, run: RunDirectory) -> int | None:
    """After a resume: go on with the best checkpoint if it is there, else forget it. Returns its step."""
    if not state.best_global_step:
        return None
    if is_whole(run.checkpoint(state.best_global_step)):
        state.best_model_checkpoint = str(run.checkpoint(state.best_global_step))
        return int(state.best_global_step)
    # The run was begun from a checkpoint of another one, or somebody deleted it.
    state.best_metric = state.best_global_step = state.best_model_checkpoint = None
    return None


def announce_evaluation(trainer: GRPOTrainer, figures: dict[str, float]) -> None:
    """Fire `on_evaluate`, so that callbacks of any kind hear of an evaluation as they do under transformers."""
    trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, figures)


def share_from_main(row: dict[str, Any]) -> dict[str, Any]:
    """What the main process has, in every process: they must agree on what is saved, and on when to stop."""
    return dict(broadcast_object_list([row])[0])
