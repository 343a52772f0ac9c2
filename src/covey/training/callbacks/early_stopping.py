"""Stopping a run that no longer gets better on the held-out problems: `callbacks=[early_stopping]`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from covey.config.schema import EARLY_STOPPING
from covey.training.checkpoint.best import evaluated

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
