"""What Covey's trainer does at the callback events of transformers' loop."""

from __future__ import annotations

import logging
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.log_once import log_once
from covey.training.checkpoint.progress import local_part

logger = logging.getLogger(__name__)


class TrainerHooks(TrainerCallback):
    """Added by the trainer itself, so it runs before callbacks that are added later."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self._trainer
        trainer._finite.check_start(trainer.model, str(trainer.model.config._name_or_path))
        if state.is_world_process_zero and not trainer.is_deepspeed_enabled:  # whose optimiser has float32 weights
            log_rounded_steps(trainer.model, float(args.learning_rate))
        trainer._scoring.supports(trainer.model)  # prepares its layers: a resumed run must sample as this one goes on
        trainer.checkpoints.newest = None
        restored, trainer._restored = trainer._restored, None
        if trainer._resampler is not None:
            trainer._resampler.begin(trainer._train_sampler, restored, generate_every=trainer._generate_every)
        if trainer.asynchronous:
            trainer.asynchronous.begin(restored)
        if restored is not None:  # transformers' loop has just set its running totals to zero
            trainer._tr_loss += restored.loss_since_log
            trainer._total_loss_scalar = restored.loss_total
            trainer._globalstep_last_logged = restored.last_logged_step

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self._trainer
        trainer._finite.end_step(state.global_step + 1, trainer.model)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self._trainer
        trainer.sampling.repeat()
        trainer.checkpoints.check()
        if trainer.asynchronous:
            trainer.asynchronous.end_step()
        waits = control.should_log or control.should_save or control.should_evaluate or control.should_training_stop
        if waits or trainer.accelerator.device.type == "cpu":
            trainer.check_finite()
        if trainer._kl_monitor.exceeded:
            control.should_log = control.should_training_stop = True
            control.should_save = control.should_evaluate = False


def log_rounded_steps(model: torch.nn.Module, rate: float) -> None:
    """Log how many of the weights that are trained in half precision a step can move: in the others it is less than
    half the spacing. Adam's steps are about as long as the learning rate."""
    held = [one for one in model.parameters() if one.requires_grad and one.dtype in (torch.bfloat16, torch.float16)]
    count = sum(local_part(one).numel() for one in held)
    if count:
        share = sum(int((local_part(one) + rate).ne(local_part(one)).sum()) for one in held) / count
        text = (
            "Weights are trained in %s: a step of the learning rate %g moves %.1f%% of them, and is rounded away in "
            "the others. model.dtype=float32 lets all move; training.bf16=true still computes in bfloat16."
        )
        level = logging.WARNING if share < 0.9 else logging.INFO
        log_once(logger, text, str(held[0].dtype).removeprefix("torch."), rate, 100 * share, level=level)
