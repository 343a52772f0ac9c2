"""The best checkpoint of a run: by a metric of the held-out set (`evaluation.best_by`), never by the training reward.

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

_PREFIX = "eval_"
"""Of metrics of the held-out problems in `TrainerState.log_history`, and in the `metrics` of `on_evaluate`."""


def event_metrics(row: Mapping[str, object]) -> dict[str, float]:
    """The metrics of an evaluation's main set under transformers' names: `eval_accuracy`, `eval_reward`, …"""
    group = names.eval_name(next(iter(names.held_out_sets([row])), names.TEST_SET), "")
    found = {name.removeprefix(group): value for name, value in row.items() if name.startswith(group)}
    return {f"{_PREFIX}{name}": float(value) for name, value in found.items() if isinstance(value, int | float)}


def deciding_metric(row: Mapping[str, object], best_by: str | None) -> str | None:
    """Which of the `event_metrics` decides which checkpoint is the best; None if the evaluation does not have it."""
    name = names.best_metric([row], best_by)
    return None if name is None else _PREFIX + name.partition("/")[2]


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
    return any(name.startswith(_PREFIX) for name in entry)


def evaluated(state: TrainerState) -> list[tuple[int, float]]:
    """Step and value of every evaluation so far, in order, by the metric of the newest one."""
    entries = [entry for entry in state.log_history if is_evaluation(entry)]
    metric = next((name for entry in entries[-1:] for name in entry if name.startswith(_PREFIX)), None)
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


def fire_on_evaluate(trainer: Trainer, metrics: dict[str, float]) -> None:
    """Fire `on_evaluate`, so that any callback sees evaluations as under transformers."""
    trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)


def broadcast_from_main(row: dict[str, Any]) -> dict[str, Any]:
    """The main process's row, in every process: they must agree on what is saved and when to stop."""
    return dict(broadcast_object_list([row])[0])
