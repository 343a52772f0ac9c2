"""Reading and restoring the trainer state that a checkpoint holds beyond transformers' and TRL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey.training.advantages.state import restore_state, state_of
from covey.training.batch_source.prompt_order import replay_permutations
from covey.training.checkpoint.progress import TrainingProgress, copy_log, extend_log


def progress_of(trainer: Any) -> TrainingProgress:
    """The state of Covey's `GRPOTrainer` after the current step."""
    mid_batch = trainer._step % trainer._generate_every != 0
    return TrainingProgress(
        micro_step=trainer._step,
        passes_done=int(trainer.state.epoch or 0),
        buffered_inputs=trainer._buffered_inputs if mid_batch else None,
        pending_metrics={name: list(values) for name, values in trainer._metrics["train"].items()},
        completion_log=copy_log(trainer._logs),
        step_time=trainer._current_train_step_time,
        loss_since_log=float(trainer._tr_loss),
        loss_total=float(trainer._total_loss_scalar),
        last_logged_step=int(trainer._globalstep_last_logged),
        beta=float(trainer.beta),
        prompt_cursor=trainer._resampler.cursor if trainer._resampler is not None else None,
        objective_columns=trainer._objective_columns,
        objective_state=state_of(trainer._objective),
        rollouts=trainer.asynchronous.state() if trainer.asynchronous else None,
        sampler_gap=trainer.sampling.last_gap,
    )


def restore_progress(trainer: Any, progress: TrainingProgress, checkpoint: Path) -> None:
    """Restore what `progress_of` read; running totals follow once transformers' loop has reset them."""
    trainer._restored = progress
    if trainer.asynchronous:
        trainer.asynchronous.resumed_from = checkpoint.parent
    trainer._step = progress.micro_step
    trainer._buffered_inputs = progress.buffered_inputs
    trainer._current_train_step_time = progress.step_time
    trainer._metrics["train"].clear()
    trainer._metrics["train"].update(progress.pending_metrics)
    if trainer._kl_monitor.moves_beta and progress.beta is not None:
        trainer.beta = progress.beta
    extend_log(trainer._logs, progress.completion_log)
    trainer._objective_columns = dict(progress.objective_columns)
    restore_state(trainer._objective, progress.objective_state)
    trainer.sampling.last_gap = dict(progress.sampler_gap)
    replay_permutations(trainer._train_sampler, progress.passes_done)
