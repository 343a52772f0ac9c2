"""Stopping a run whose held-out accuracy no longer rises: `callbacks=[early_stopping]`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.training.checkpoint.best import evaluated

logger = logging.getLogger(__name__)


def evaluations_without_gain(accuracies: Sequence[float], threshold: float) -> int:
    """Number of evaluations since the last new best.

    Args:
        accuracies: of every evaluation so far, including the one before training.
        threshold: least gain of a new best over the last one; with 0, any gain counts.
    """
    best, since = float("-inf"), 0
    for accuracy in accuracies:
        if accuracy > best and accuracy - best >= threshold:
            best, since = accuracy, 0
        else:
            since += 1
    return since


class EarlyStopping(TrainerCallback):
    """Stops the run after `patience` consecutive evaluations without a new best accuracy.

    It reads the evaluations in the trainer's state, so a resumed run ends at the same step.
    """

    def __init__(self, patience: int, threshold: float) -> None:
        self._patience = patience
        self._threshold = threshold

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        since = evaluations_without_gain([accuracy for _, accuracy in evaluated(state)], self._threshold)
        if since >= self._patience and state.global_step:
            logger.warning(
                "Stopping early, after step %d: %d evaluations without a new best.", state.global_step, since
            )
            control.should_training_stop = True
        return control
