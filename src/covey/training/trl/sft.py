"""Covey's `SFTTrainer`: TRL's, on examples that Covey has made tokens of, with runs that resume exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trl import SFTConfig
from trl import SFTTrainer as TRLSFTTrainer

from covey.config import SpeedConfig
from covey.log_once import begin_run
from covey.training.checkpoint.state import TrainingProgress
from covey.training.checkpoint.write import ResumedExactly
from covey.training.trl.generation import PolicyEngine
from covey.training.trl.trainer import TrainerHooks

__all__ = ["SFTConfig", "SFTTrainer"]


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
