"""What happens around the steps of a run: rows and completions written, held-out problems evaluated, stops obeyed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.evaluation.run import EvaluationResult, GradedCompletion, last_user_message
from covey.report.live import LiveReport
from covey.runlog import names
from covey.runlog.background import InBackground
from covey.runlog.completions import write_completions
from covey.runlog.directory import RunDirectory
from covey.runlog.files import json_line, write_atomically
from covey.runlog.metrics import MetricsWriter
from covey.training.best import METRIC, is_new_best, judged_by, note_evaluation, recall_best
from covey.training.display import Display
from covey.training.memory_in_use import memory_in_use
from covey.training.processes import Processes, StopRequest
from covey.training.recording import Recorder
from covey.training.stages import StageClock
from covey.training.trackers import tell_trackers

if TYPE_CHECKING:
    from covey.training.trainer import GRPOTrainer

Evaluate = Callable[[], Mapping[str, EvaluationResult]]
"""Evaluates the model as it is now on every held-out set, by name."""


class RunLogCallback(TrainerCallback):
    """Writes one row of metrics a step, and the completions, and keeps the display up to date. Main process only.

    Completions are written while training goes on; before a checkpoint is, they are on the disk.
    """

    def __init__(
        self,
        trainer: GRPOTrainer,
        run: RunDirectory,
        writer: MetricsWriter,
        display: Display,
        *,
        completions_every_steps: int,
        sample_completions: int,
        recorder: Recorder | None = None,
        stages: StageClock | None = None,
        report: LiveReport | None = None,
    ) -> None:
        self._recorder = recorder or Recorder()
        self._stages = stages or StageClock()
        self._report = report
        self._trainer = trainer
        self._run = run
        self._writer = writer
        self._display = display
        self._completions_every_steps = completions_every_steps
        self._sample_completions = sample_completions
        self._step_began = time.perf_counter()
        self._writes = InBackground()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._step_began = time.perf_counter()

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
        if step_time := logs.get("step_time"):
            row[names.COMPLETIONS_PER_SECOND] = self._completions_per_step() / step_time
        measured = self._stages.take() | memory_in_use()
        row |= measured
        tell_trackers(self._trainer, measured)
        self._writer.add(state.global_step, row)
        self._display.update(state.global_step, row)
        self._write_completions(state.global_step)
        if control.should_save:
            self._writes.wait()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._writer.flush()
            if self._report:
                self._report.refresh()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._writes.wait()

    def _completions_per_step(self) -> float:
        """Completions sampled for one optimiser step, on average."""
        args = self._trainer.args
        steps = args.steps_per_generation * self._trainer.num_iterations / args.gradient_accumulation_steps
        return float(args.generation_batch_size / steps)

    def _write_completions(self, step: int) -> None:
        every = self._completions_every_steps
        columns = self._trainer.latest_completions
        if not columns["completion"]:
            return
        if every and step % every == 0:
            trainer = self._trainer
            template, size = trainer.args.chat_template_kwargs, trainer.num_generations
            recorded = self._recorder.columns(columns, trainer.processing_class, template, size)
            self._writes.add(partial(write_completions, self._run.completions, step, recorded))
        if not self._display.shows_held_out:
            self._display.completions(list(_training_samples(columns, self._sample_completions)))


class EvaluationCallback(TrainerCallback):
    """Evaluates before the first step (if asked to), every `every_steps` steps and after the last one."""

    def __init__(
        self,
        evaluate: Evaluate,
        run: RunDirectory,
        writer: MetricsWriter,
        display: Display,
        *,
        every_steps: int,
        before_training: bool,
        sample_completions: int,
        keep_best_in: RunDirectory | None = None,
        tell: Callable[[Mapping[str, Any]], None] | None = None,
        announce: Callable[[dict[str, float]], None] | None = None,
        share: Callable[[Any], Any] | None = None,
    ) -> None:
        """Take what evaluates, and where its figures go.

        Args:
            keep_best_in: the run whose checkpoints these are: one is written at every new best accuracy, and linked.
            tell: tells the trackers.
            announce: fires transformers' `on_evaluate` with the figures, in every process.
            share: gives every process what the main one has.
        """
        self._keep_best_in = keep_best_in
        self._announce = announce
        self._share = share
        self._tell = tell  # the trackers: this callback's figures do not pass through the trainer's own log
        self._evaluate = evaluate
        self._run = run
        self._writer = writer
        self._display = display
        self._every_steps = every_steps
        self._before_training = before_training
        self._sample_completions = sample_completions

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        best = recall_best(state, self._keep_best_in) if self._keep_best_in else None
        if best is not None and self._keep_best_in and state.is_world_process_zero:
            self._keep_best_in.link_best(best)
        if state.global_step == 0 and self._before_training:
            self._evaluate_now(state, control)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self._every_steps == 0 or state.global_step >= state.max_steps:
            self._evaluate_now(state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._keep_best_in and state.is_world_process_zero and state.best_global_step == state.global_step:
            self._keep_best_in.link_best(state.global_step)

    def _evaluate_now(self, state: TrainerState, control: TrainerControl) -> None:
        row = self._run_evaluation(state)
        if self._share:
            row = self._share(row)
        accuracy = judged_by(row)
        if accuracy is None:
            return
        figures = {METRIC: accuracy}
        note_evaluation(state, figures)
        if self._announce:
            self._announce(figures)
        if self._keep_best_in and is_new_best(state, accuracy):
            control.should_save = True

    def _run_evaluation(self, state: TrainerState) -> dict[str, Any]:
        began = time.perf_counter()
        self._display.status("evaluating on held-out problems")
        results = self._evaluate()
        if not state.is_world_process_zero:
            return {}
        row: dict[str, Any] = {names.EVALUATION_TIME: time.perf_counter() - began}
        for held_out, result in results.items():
            row |= {names.eval_name(held_out, metric): value for metric, value in result.metrics().items()}
            records = "".join(json_line(asdict(item)) for item in result.completions)
            write_atomically(self._run.evaluation / f"{held_out}-step-{state.global_step:06d}.jsonl", records)
        self._writer.add(state.global_step, row)
        if self._tell:
            self._tell(row)
        first = next(iter(results.values()), None)
        if first is not None:
            self._display.completions([_held_out_sample(c) for c in first.completions[: self._sample_completions]])
        self._display.update(state.global_step, row)
        self._display.status("")
        return row


class StopCallback(TrainerCallback):
    """Ends an invocation cleanly, with a checkpoint, after `stop_after_steps` steps or on a signal.

    The schedule of the run is not touched: going on later equals never having stopped.
    """

    def __init__(self, stop_after_steps: int | None, processes: Processes | None = None) -> None:
        """Take when to stop.

        Args:
            stop_after_steps: how many steps this invocation makes; None, as many as the run has.
            processes: stop together, whichever of them a signal came to.
        """
        self._stop_after_steps = stop_after_steps
        self._processes = processes or Processes()
        self._first_step = 0
        self._caught: int | None = None
        self.signal: int | None = None
        """The signal that asked for the stop, if one did."""
        self.stopped = False
        """Whether the run was ended before its last step."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._first_step = state.global_step

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        done_here = state.global_step - self._first_step
        enough = self._stop_after_steps is not None and done_here >= self._stop_after_steps
        self.signal = self._processes.any_signal(self._caught)
        if (enough or self.signal is not None) and state.global_step < state.max_steps:
            self.stopped = True
            control.should_save = True
            control.should_training_stop = True

    @contextmanager
    def catching_signals(self, display: Display) -> Iterator[None]:
        """Within, the first Ctrl-C or SIGTERM asks for a clean stop; a second Ctrl-C interrupts at once."""

        def tell(number: int) -> None:
            self._caught = number
            # A status, not a note: printing above the panel from within a handler could cut into a redraw.
            display.status(f"{signal.Signals(number).name}: finishing this step, then writing a checkpoint")

        caught = (signal.SIGINT, signal.SIGTERM)
        request = StopRequest(tell, alone=self._processes.count == 1)
        before = [signal.signal(number, request) for number in caught]
        try:
            yield
        finally:
            for number, handler in zip(caught, before, strict=True):
                signal.signal(number, handler)


def _held_out_sample(item: GradedCompletion) -> dict[str, Any]:
    return {
        "prompt": item.prompt,
        "completion": item.completion,
        "answer": item.answer,
        "reward": None,
        "right": item.outcome == "right",
    }


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
            "completion": completion if isinstance(completion, str) else str(completion[-1]["content"]),
            "answer": None,
            "reward": first_reward,
            "right": None if first_reward is None else first_reward >= 1.0,
        }
