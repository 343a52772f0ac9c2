"""Covey's `SFTTrainer`: TRL's, on examples that Covey has made tokens of, with runs that resume exactly."""

from __future__ import annotations

import tempfile
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from trl import SFTConfig
from trl import SFTTrainer as TRLSFTTrainer

from covey.config import SpeedConfig
from covey.log_once import begin_run
from covey.model.starter.coldstart import ColdStart, examples, new_starter
from covey.training.checkpoint.state import TrainingProgress
from covey.training.checkpoint.write import ResumedExactly
from covey.training.trl.generation import PolicyEngine
from covey.training.trl.trainer import TrainerHooks

__all__ = ["SFTConfig", "SFTTrainer", "train_starter"]


class SFTTrainer(ResumedExactly, TRLSFTTrainer):
    """TRL's `SFTTrainer`, with the same constructor and the same numbers; it evaluates with Covey's engine.

    A checkpoint of TRL 1.16 lacks the number of tokens so far, and metrics not yet logged. Covey's holds them.
    """

    asynchronous = None
    use_vllm = False
    recorder = None
    num_completions_to_print = 0

    def __init__(self, *args: Any, speed: SpeedConfig | None = None, **kwargs: Any) -> None:
        """TRL's arguments, and `speed`: which repeated work evaluations do only once; None turns all of it on."""
        begin_run()
        super().__init__(*args, **kwargs)
        self._speed = speed if speed is not None else SpeedConfig()
        self.engine = PolicyEngine(self)
        self._begin_checkpoints()
        self.add_callback(TrainerHooks(self))

    @property
    def latest_completions(self) -> dict[str, list[Any]]:
        """None are sampled."""
        return {"completion": []}

    def _progress(self) -> TrainingProgress:
        metrics = {name: list(values) for name, values in self._metrics["train"].items()}
        losses = float(self._tr_loss), float(self._total_loss_scalar), int(self._globalstep_last_logged)
        return TrainingProgress(0, 0, None, metrics, {}, 0.0, *losses, tokens=int(self._total_train_tokens))

    def _restore(self, progress: TrainingProgress, checkpoint: Path) -> None:
        self._total_train_tokens = progress.tokens
        self._metrics["train"].clear()
        self._metrics["train"].update(progress.pending_metrics)

    # -- replaces TRL's `compute_loss`: records on the device whether the loss is finite.
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return self._finite.record("loss", super().compute_loss(*args, **kwargs))


def train_starter(
    settings: ColdStart, on_step: Callable[[int, float], None]
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Train a starter model, on the CPU.

    Args:
        settings: steps, batch size, learning rate, seed.
        on_step: called with (step, loss) after every step.

    Returns:
        The model in evaluation mode, and its tokenizer.
    """
    torch.manual_seed(settings.seed)
    if settings.dataset is not None:
        torch.set_num_threads(1)  # on any machine: with another number, sums are rounded in another order
    model, tokenizer = new_starter(settings)
    recent: deque[float] = deque(maxlen=25)

    class Steps(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in logs:
                on_step(state.global_step, logs["loss"])
                recent.append(logs["loss"])
                control.should_training_stop |= len(recent) == 25 and sum(recent) / 25 <= settings.enough

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a name that TRL still uses
        args = SFTConfig(
            folder,
            seed=settings.seed,
            max_steps=settings.steps,
            per_device_train_batch_size=settings.batch_size // settings.micro_batches,
            gradient_accumulation_steps=settings.micro_batches,
            gradient_checkpointing=False,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=settings.warmup_steps,
            weight_decay=settings.weight_decay,
            adam_beta2=0.98,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            use_cpu=True,
            bf16=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        rows = IterableDataset.from_generator(examples, gen_kwargs={"settings": settings, "tokenizer": tokenizer})
        trainer = SFTTrainer(
            model=model, args=args, train_dataset=rows, processing_class=tokenizer, callbacks=[Steps()]
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return model.eval(), tokenizer
