"""Covey's `GRPOTrainer`: TRL's, with checkpoints that hold all the next step depends on.

The only module that knows TRL's private methods. Each shell below says which method it replaces and why; the bodies
live in sibling modules that know nothing of TRL. `tests/test_trl_contract.py` fails readably when one of the replaced
methods changes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl import GRPOConfig
from trl import GRPOTrainer as TRLGRPOTrainer

from covey.runlog.directory import is_whole, mark_whole, unmark
from covey.training.progress import Progress, load_progress, save_progress

__all__ = ["GRPOConfig", "GRPOTrainer"]


class GRPOTrainer(TRLGRPOTrainer):
    """TRL's `GRPOTrainer`, with the same constructor and the same numbers, and runs that resume exactly.

    A checkpoint of TRL 1.16 forgets the completions that are still to be learned from, the place within the
    accumulation and generation cycle, which permutation of the data an epoch is in, and metrics not yet logged. Covey's
    holds them, so that stopping after any step and going on equals the straight run (bit for bit on CPU). A checkpoint
    counts as whole once its marker file, written last, is there.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._restored: Progress | None = None
        self.add_callback(_RestoreRunningTotals(self))

    @property
    def latest_completions(self) -> dict[str, list[Any]]:
        """The completions of the newest generation batch, over all processes: one list per column.

        Columns: `prompt`, `completion`, one per reward function, `advantage`, and what rewards logged with `log_extra`.
        """
        logs = self._logs
        columns = {"prompt": list(logs["prompt"]), "completion": list(logs["completion"])}
        columns |= {name: list(values) for name, values in logs["rewards"].items()}
        columns |= {name: list(values) for name, values in logs["extra"].items()}
        columns["advantage"] = list(logs["advantages"])
        return columns

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run, by `max_steps` or by the epochs over the data."""
        return int(self.set_initial_training_values(self.args, self.get_train_dataloader())[-1])

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of one pass over the data."""
        return int(self.set_initial_training_values(self.args, self.get_train_dataloader())[1])

    def load_checkpoint_weights(self, checkpoint: Path) -> None:
        """Put a checkpoint's weights and trainer state in place, without training on."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))

    # -- TRL's `_get_train_sampler`: the same order, but an epoch's permutation can be found again after a resume.
    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler[int]:
        sampler: Sampler[int] = super()._get_train_sampler(dataset)
        self._train_sampler = sampler
        return sampler

    # -- TRL's `_save_checkpoint`: adds what TRL leaves out, then the marker; old checkpoints go only after that.
    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        run_dir = Path(self._get_output_dir(trial=trial))
        folder = run_dir / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save and folder.is_dir():
            if is_whole(folder):
                unmark(folder)  # it is about to be rewritten
            else:
                shutil.rmtree(folder)  # left half-written by a process that died
        self.accelerator.wait_for_everyone()
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = keep
        save_progress(folder, self.args.process_index, self._progress())
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_whole(folder, self.state.global_step)
            rotate_checkpoints(
                output_dir=str(run_dir),
                save_total_limit=keep,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    # -- TRL's `_load_optimizer_and_scheduler`: the one hook of a resume that runs once the trainer state is known and
    #    before the data are read.
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        progress = load_progress(Path(checkpoint), self.args.process_index, self.accelerator.device)
        if progress is None:
            return  # a checkpoint of stock TRL; `load_progress` has said what that costs
        self._restored = progress
        self._step = progress.micro_step
        self._buffered_inputs = progress.buffered_inputs
        self._current_train_step_time = progress.step_time
        self._metrics["train"].clear()
        self._metrics["train"].update(progress.pending_metrics)
        for name in ("prompt", "completion", "advantages"):
            self._logs[name].extend(progress.completion_log[name])
        for name in ("rewards", "extra"):
            for column, values in progress.completion_log[name].items():
                self._logs[name][column].extend(values)
        _replay_permutations(self._train_sampler, progress.passes_done)

    def _progress(self) -> Progress:
        generate_every = self.args.steps_per_generation * self.num_iterations
        mid_batch = self._step % generate_every != 0
        return Progress(
            micro_step=self._step,
            passes_done=int(self.state.epoch or 0),
            buffered_inputs=self._buffered_inputs if mid_batch else None,
            pending_metrics={name: list(values) for name, values in self._metrics["train"].items()},
            completion_log={
                "prompt": list(self._logs["prompt"]),
                "completion": list(self._logs["completion"]),
                "advantages": list(self._logs["advantages"]),
                "rewards": {name: list(values) for name, values in self._logs["rewards"].items()},
                "extra": {name: list(values) for name, values in self._logs["extra"].items()},
            },
            step_time=self._current_train_step_time,
            loss_since_log=float(self._tr_loss),
            loss_total=float(self._total_loss_scalar),
            last_logged_step=int(self._globalstep_last_logged),
        )

    def _restore_running_totals(self) -> None:
        """Give transformers its running loss back, which its loop sets to zero just before training begins."""
        if self._restored is None:
            return
        self._tr_loss += self._restored.loss_since_log
        self._total_loss_scalar = self._restored.loss_total
        self._globalstep_last_logged = self._restored.last_logged_step
        self._restored = None


class _RestoreRunningTotals(TrainerCallback):
    def __init__(self, trainer: GRPOTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer._restore_running_totals()


def _replay_permutations(sampler: Any, count: int) -> None:
    """Draw and drop the permutations of the passes that a resumed run does not make again."""
    generator = getattr(sampler, "generator", None)
    if generator is None:
        return
    for _ in range(count):
        torch.randperm(len(sampler.data_source), generator=generator)
