"""Trainer callbacks: evaluation, the log of a run, stopping, edited code, a reasoning rate; and the user's own."""

from __future__ import annotations

import inspect
import logging
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.config import EvaluationConfig
from covey.config.schema import EARLY_STOPPING
from covey.errors import ConfigError
from covey.evaluation.grading import GradedCompletion
from covey.evaluation.played import transcript
from covey.evaluation.run import EvaluationResult
from covey.importing import code_hashes, import_object, is_given
from covey.log_once import log_once
from covey.model.device import base_model
from covey.model.reasoning_vocab import ReasoningVocabulary
from covey.model.reasoning_vocab.expansion import tables
from covey.report.live import LiveReport
from covey.rewards.reward import last_user_message
from covey.runlog import names
from covey.runlog.completions import write_completions
from covey.runlog.directory import RunDirectory
from covey.runlog.evaluations import training_file
from covey.runlog.files import InBackground, json_line, write_atomically
from covey.runlog.metrics import MetricsWriter
from covey.runlog.notes import edited
from covey.training.checkpoint.write import (
    copy_records,
    deciding_metric,
    evaluated,
    event_metrics,
    is_new_best,
    note_evaluation,
    relink_best,
)
from covey.training.checks.trackers import log_to_trackers
from covey.training.display import Display
from covey.training.memory_in_use import memory_in_use
from covey.training.processes import Processes, StopRequest
from covey.training.recording import batch_columns
from covey.workers.signals import STOPS, signal_handler

logger = logging.getLogger(__name__)


def evaluations_without_gain(values: Sequence[float], threshold: float) -> int:
    """Number of evaluations since the last new best.

    Args:
        values: the metric that decides, of every evaluation so far, including the one before training.
        threshold: least gain of a new best over the last one; with 0, any gain counts.
    """
    best, since = float("-inf"), 0
    for value in values:
        if value > best and value - best >= threshold:
            best, since = value, 0
        else:
            since += 1
    return since


class EarlyStopping(TrainerCallback):
    """Stops the run after `patience` consecutive evaluations without a new best, by `evaluation.best_by`.

    It reads the evaluations in the trainer's state, so a resumed run ends at the same step.
    """

    def __init__(self, patience: int, threshold: float) -> None:
        self._patience = patience
        self._threshold = threshold
        self.reason = ""
        """Why it ended the run, as a phrase; empty if it did not."""

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        since = evaluations_without_gain([value for _, value in evaluated(state)], self._threshold)
        if since >= self._patience and state.global_step:
            self.reason = f"{since} evaluations brought no new best (callbacks=[{EARLY_STOPPING}])"
            logger.warning("Stopping early, after step %d: %s.", state.global_step, self.reason)
            control.should_training_stop = True
        return control


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
        # The main process's row, in every process: they must agree on what is saved and when to stop.
        row = broadcast_object_list([self._run_evaluation(state)])[0]
        metrics, metric = event_metrics(row), deciding_metric(row, self.best_by)
        if metric in metrics:
            note_evaluation(state, metric, metrics[metric])
        if metrics:  # any callback sees them as under transformers
            handler = self.trainer.callback_handler
            self.trainer.control = handler.on_evaluate(self.trainer.args, state, self.trainer.control, metrics)
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


class OwnCodeCallback(TrainerCallback):
    """Reports a file of the user's own parts that is edited: worker processes that start later import the new version.

    Args:
        names: the parts, `covey.config.named_code.own_code`.
        kept_in: the folder with the copies of the start, for the message.
    """

    def __init__(self, names: Sequence[str], kept_in: Path) -> None:
        self._names = [name for name in names if not is_given(name)]  # an object goes to the workers as it is
        self._kept_in = kept_in
        self._known = code_hashes(self._names)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        now = code_hashes(self._names)
        found = edited(self._known, now)
        self._known |= now
        if found:
            text = "The file of %s was edited by step %d. What is loaded stays as it was; worker processes that start "
            text += "from now on, and a resume, import the new version. %s has the version of the start."
            logger.warning(text, ", ".join(found), state.global_step, self._kept_in)


class ReasoningRate(TrainerCallback):
    """Multiplies what each optimiser step changes in the rows of reasoning tokens, in the embedding and in the head.

    For an optimiser whose step is proportional to the learning rate, as Adam's and SGD's are, weight decay included,
    this is the same as a learning rate that is multiplied. Multiplied gradients would change nothing under Adam.
    """

    def __init__(self, model: Any, vocabulary: ReasoningVocabulary, factor: float) -> None:
        """
        Args:
            model: the policy, with adapters or not, without wrappers.
            factor: multiplies the learning rate.
        """
        self._model, self._vocabulary, self._factor = model, vocabulary, factor
        self._before: list[torch.Tensor] = []

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        for rows in self._rows():
            if isinstance(rows, torch.distributed.tensor.DTensor) or hasattr(rows, "ds_id") or not rows.numel():
                raise ConfigError(
                    f"model.reasoning_lr_multiplier={self._factor:g} needs whole embeddings in every process, and this "
                    "run shards them (FSDP, or DeepSpeed ZeRO-3): leave it out, or train with data parallelism."
                )

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._before = [rows.detach().clone() for rows in self._rows()]

    @torch.no_grad()
    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        for rows, before in zip(self._rows(), self._before, strict=True):
            rows.copy_(before + self._factor * (rows - before))
        self._before = []

    def _rows(self) -> list[torch.Tensor]:
        """The trained rows: of the tables themselves, or with adapters peft's own, which hold nothing else."""
        own = [p for name, p in self._model.named_parameters() if "trainable_tokens_delta" in name and p.requires_grad]
        first = self._vocabulary.map.base_vocab_size
        return list(own) or [table[first:] for table in tables(base_model(self._model)) if table.requires_grad]


@dataclass(eq=False, kw_only=True)
class RunLogCallback(TrainerCallback):
    """Writes metrics and completions of each step, and updates the display. Main process only.

    Completions are written in the background; before a checkpoint is marked, they are on the disk.
    """

    trainer: Any
    run: RunDirectory
    writer: MetricsWriter
    display: Display
    completions_every_steps: int
    sample_completions: int
    take_times: Callable[[], dict[str, float]]
    """The seconds of each stage since the last call, by metric."""
    report: LiveReport
    tells_trackers: bool = True
    """Whether trackers get the times and the memory too."""
    _writes: InBackground = field(init=False, default_factory=InBackground)
    _evaluated: list[Any] = field(init=False, default_factory=list)
    _timed: int = field(init=False, default=0)
    _stages: dict[str, float] = field(init=False, default_factory=lambda: defaultdict(float))
    """Seconds of the stages of the steps since step `_timed`."""

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._timed = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        row = names.train_row(logs)
        evaluates = not self.trainer.model.training and any(name.startswith("eval_") for name in logs)
        if step_time := logs.get("step_time"):
            args = self.trainer.args
            calls_per_step = args.gradient_accumulation_steps / (
                args.steps_per_generation * self.trainer.num_iterations
            )
            row[names.COMPLETIONS_PER_SECOND] = args.generation_batch_size * calls_per_step / step_time
        taken = self.take_times()
        steps = max(1, state.global_step - self._timed)  # TRL's metrics too are means of the steps since the last log
        measured = memory_in_use()
        if not evaluates:
            self._add(taken)
            measured |= {stage: seconds / steps for stage, seconds in self._stages.items()}
            self._timed = state.global_step
            self._stages.clear()
            row |= measured
        if self.tells_trackers:
            log_to_trackers(self.trainer, measured)
        self.writer.add(state.global_step, row)
        self.display.update(state.global_step, row)
        completions = self.trainer.latest_completions["completion"]
        if evaluates:  # a script, by TRL's evaluation, whose completions take the place of the step's
            self._evaluated = completions
        elif completions != self._evaluated:
            self._write_completions(state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._add(self.take_times())  # before an evaluation adds its own
            self.run.refuse_deleted()  # before a checkpoint makes the folder again

    def _add(self, times: Mapping[str, float]) -> None:
        for stage, seconds in times.items():
            self._stages[stage] += seconds

    def keep_records(self, checkpoint: Path) -> None:
        """Flush all records to the disk before the checkpoint is marked."""
        self._writes.wait()
        self.writer.flush()
        copy_records(self.run, checkpoint)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.report.refresh()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._writes.wait()

    def _write_completions(self, step: int) -> None:
        every = self.completions_every_steps
        columns = self.trainer.latest_completions
        if not columns["completion"]:
            return
        if every and step % every == 0:
            trainer = self.trainer
            template, size = trainer.args.chat_template_kwargs, trainer.num_generations
            own = trainer.objective_columns
            recorded = {name: values for name, values in columns.items() if name not in own}
            recorded |= batch_columns(columns, trainer.processing_class, template, size)
            recorded |= own
            self._writes.add(partial(write_completions, self.run.completions, step, recorded))
        if not self.display.shows_held_out:
            self.display.completions(list(_training_samples(columns, self.sample_completions)))


def _training_samples(columns: Mapping[str, list[Any]], count: int) -> Iterator[dict[str, Any]]:
    """The first completion of each of the first `count` groups."""
    rewards = [name for name in columns if name not in ("prompt", "completion", "advantage")]
    seen: list[Any] = []
    for row, prompt in enumerate(columns["prompt"]):
        if prompt in seen:
            continue
        seen.append(prompt)
        if len(seen) > count:
            return
        completion = columns["completion"][row]
        first_reward = columns[rewards[0]][row] if rewards else None
        yield {
            "prompt": last_user_message(prompt),
            "completion": completion if isinstance(completion, str) else transcript(completion),
            "answer": None,
            "reward": first_reward,
            "right": None if first_reward is None else first_reward >= 1.0,
        }


class StopCallback(TrainerCallback):
    """Stops an invocation cleanly, with a checkpoint, after `stop_after_steps` steps or on a signal.

    The schedule of the run does not change: a resumed run equals one that never stopped.
    """

    def __init__(self, stop_after_steps: int | None, processes: Processes | None = None) -> None:
        """
        Args:
            stop_after_steps: steps of this invocation; None for all steps of the run.
            processes: stop together, whichever of them gets the signal.
        """
        self._stop_after_steps = stop_after_steps
        self._processes = processes or Processes()
        self._first_step = 0
        self._caught: int | None = None
        self.signal: int | None = None
        """The signal that requested the stop, if any."""
        self.stopped = False
        """Whether the run was stopped before its last step."""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._first_step = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        done_here = state.global_step - self._first_step
        enough = self._stop_after_steps is not None and done_here >= self._stop_after_steps
        self.signal = self._processes.any_signal(self._caught)
        if (enough or self.signal is not None) and state.global_step < state.max_steps:
            self.stopped = True
            control.should_save = True
            control.should_training_stop = True

    def reason(self, state: TrainerState, callbacks: Iterable[object]) -> str:
        """Why training ended, as a phrase."""
        if self.signal is not None and self.stopped:
            return f"the signal {signal.Signals(self.signal).name}"
        if self.stopped:
            return f"stop_after_steps={self._stop_after_steps}"
        if state.global_step >= state.max_steps:
            return "all steps are done"
        early = [callback.reason for callback in callbacks if isinstance(callback, EarlyStopping) and callback.reason]
        return early[0] if early else f"a callback ended it at step {state.global_step} of {state.max_steps}"

    @contextmanager
    def catching_signals(self, display: Display) -> Iterator[None]:
        """Context manager: the first signal of `STOPS` requests a clean stop; a second Ctrl-C interrupts at once."""

        def request_stop(number: int) -> None:
            self._caught = number
            # A status, not a note: a handler that prints above the panel could interrupt a redraw.
            display.status(f"{signal.Signals(number).name}: finishing this step, then writing a checkpoint")
            display.hint = _HINT_AGAIN

        with signal_handler(STOPS, StopRequest(request_stop, alone=self._processes.count == 1)):
            display.hint = _HINT
            try:
                yield
            finally:
                display.hint = ""


_HINT = "Ctrl-C finishes the step, writes a checkpoint and stops"
_HINT_AGAIN = "Ctrl-C again stops at once, without a checkpoint"


def load_callbacks(names: Sequence[str], settings: EvaluationConfig | None = None) -> list[TrainerCallback]:
    """Instantiate classes; take objects as they are.

    Args:
        names: `early_stopping`, `file.py:Class` or `package.module:Class`, each a `transformers.TrainerCallback`.
        settings: for early stopping.

    Raises:
        ConfigError: there is no such class, it is not a callback, or it needs arguments.
    """
    settings = settings or EvaluationConfig()
    patience, threshold = settings.early_stopping_patience, settings.early_stopping_threshold
    return [EarlyStopping(patience, threshold) if name == EARLY_STOPPING else _load_callback(name) for name in names]


def _load_callback(name: str) -> TrainerCallback:
    if ":" not in name:
        raise ConfigError(
            f"callbacks: there is no callback called {name}. Covey has {EARLY_STOPPING}; name your own as "
            "file.py:Class or package.module:Class."
        )
    found = import_object(name, "callbacks", ConfigError)
    if inspect.isclass(found) and issubclass(found, TrainerCallback):
        try:
            return found()
        except TypeError as error:
            raise ConfigError(f"callbacks: {name} cannot be made without arguments: {error}.") from error
    if not isinstance(found, TrainerCallback):
        kind = found.__name__ if inspect.isclass(found) else type(found).__name__
        raise ConfigError(f"callbacks: {name} is not a transformers.TrainerCallback, but {kind}.")
    return found
