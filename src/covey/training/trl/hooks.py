"""What Covey's trainer does at the callback events of transformers' loop."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class TrainerHooks(TrainerCallback):
    """Added by the trainer itself, so it runs before callbacks that are added later."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        trainer = self._trainer
        trainer._finite.check_start(trainer.model, str(trainer.model.config._name_or_path))
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
