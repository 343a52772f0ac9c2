"""Writing metrics and completions during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.evaluation.completions.transcript import transcript
from covey.report.live import LiveReport
from covey.rewards.reward import last_user_message
from covey.runlog import names
from covey.runlog.background import InBackground
from covey.runlog.completions import write_completions
from covey.runlog.directory import RunDirectory
from covey.runlog.metrics import MetricsWriter
from covey.training.batch_source.recording import batch_columns
from covey.training.callbacks.memory_in_use import memory_in_use
from covey.training.checkpoint.records import copy_records
from covey.training.display.live_display import Display
from covey.training.preflight.trackers import log_to_trackers
from covey.training.trl.step_timer import StepTimer

if TYPE_CHECKING:
    from covey.training.trl.trainer import GRPOTrainer


@dataclass(eq=False, kw_only=True)
class RunLogCallback(TrainerCallback):
    """Writes metrics and completions of each step, and updates the display. Main process only.

    Completions are written in the background; before a checkpoint is marked, they are on the disk.
    """

    trainer: GRPOTrainer
    run: RunDirectory
    writer: MetricsWriter
    display: Display
    completions_every_steps: int
    sample_completions: int
    timer: StepTimer
    report: LiveReport
    _writes: InBackground = field(init=False, default_factory=InBackground)

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
        measured = self.timer.take() | memory_in_use()
        row |= measured
        log_to_trackers(self.trainer, measured)
        self.writer.add(state.global_step, row)
        self.display.update(state.global_step, row)
        self._write_completions(state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.run.refuse_deleted()  # before a checkpoint makes the folder again

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

    def _completions_per_step(self) -> float:
        """Completions per optimiser step, on average."""
        args = self.trainer.args
        steps = args.steps_per_generation * self.trainer.num_iterations / args.gradient_accumulation_steps
        return float(args.generation_batch_size / steps)

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
