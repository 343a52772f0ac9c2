"""Evaluating on held-out problems while a run trains."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.evaluation.completions.graded import GradedCompletion
from covey.evaluation.run import EvaluationResult
from covey.log_once import log_once
from covey.runlog import names
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import training_file
from covey.runlog.files import json_line, write_atomically
from covey.runlog.metrics import MetricsWriter
from covey.training.checkpoint.best import (
    broadcast_from_main,
    deciding_metric,
    event_metrics,
    fire_on_evaluate,
    is_new_best,
    note_evaluation,
    relink_best,
)
from covey.training.display.live_display import Display
from covey.training.preflight.trackers import log_to_trackers

logger = logging.getLogger(__name__)

Evaluate = Callable[[], Mapping[str, EvaluationResult]]
"""Evaluates the current model on every held-out set, by name."""


@dataclass(eq=False, kw_only=True)
class EvaluationCallback(TrainerCallback):
    """Evaluates before the first step (if configured), every `every_steps` steps and after the last one."""

    trainer: Trainer
    evaluate: Evaluate
    run: RunDirectory
    writer: MetricsWriter
    display: Display
    every_steps: int
    before_training: bool
    sample_completions: int
    best_by: str | None
    """`evaluation.best_by`."""
    keep_best_in: RunDirectory | None
    """The run of these checkpoints: one is written at every new best, and linked."""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.keep_best_in:
            relink_best(state, self.keep_best_in)
        if state.global_step == 0 and self.before_training:
            self._evaluate_now(state, control)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.every_steps == 0 or state.global_step >= state.max_steps:
            self._evaluate_now(state, control)

    def _evaluate_now(self, state: TrainerState, control: TrainerControl) -> None:
        row = broadcast_from_main(self._run_evaluation(state))
        metrics, metric = event_metrics(row), deciding_metric(row, self.best_by)
        if metric in metrics:
            note_evaluation(state, metric, metrics[metric])
        if metrics:
            fire_on_evaluate(self.trainer, metrics)
        if self.keep_best_in and is_new_best(state):
            control.should_save = True

    def _run_evaluation(self, state: TrainerState) -> dict[str, Any]:
        began = time.perf_counter()
        self.display.status("evaluating on held-out problems")
        results = self.evaluate()
        if not state.is_world_process_zero:
            return {}
        row: dict[str, Any] = {names.EVALUATION_TIME: time.perf_counter() - began}
        for held_out, result in results.items():
            row |= {names.eval_name(held_out, metric): value for metric, value in result.metrics().items()}
            records = "".join(json_line(item.record()) for item in result.completions)
            write_atomically(training_file(self.run.root, held_out, state.global_step), records)
            if lost := result.lost():
                shares = ", ".join(f"{share:.0%} {outcome.replace('_', ' ')}" for outcome, share in lost.items())
                what = f"Completions of {names.set_label(held_out)} problems"
                text = f"{what} could not be graded ({shares}): they count as wrong."
                log_once(logger, text, key=f"lost {held_out}")
        self.writer.add(state.global_step, row)
        log_to_trackers(self.trainer, row)  # these metrics do not pass through the trainer's own log
        first = next(iter(results.values()), None)
        if first is not None:
            self.display.completions([_held_out_sample(c) for c in first.completions[: self.sample_completions]])
        self.display.update(state.global_step, row)
        self.display.status("")
        return row


def _held_out_sample(item: GradedCompletion) -> dict[str, Any]:
    return {
        "prompt": item.asked,
        "completion": item.completion,
        "answer": item.answer,
        "reward": item.score if item.outcome is not None else item.reward,
        "right": None if item.outcome is None else item.outcome == "right",
    }
