"""Batches in which no completion got a reward: the model learns nothing from them."""

from __future__ import annotations

import logging

from covey.errors import RewardError
from covey.log_once import log_once

_log = logging.getLogger("covey.rewards")
MAX_BATCHES = 20
"""The run is ended if none of its first batches, this many, has a reward."""

_NOTHING = (
    "No reward function gave any completion of this batch a reward (all are None), so the model learns nothing from "
    "it. The functions, or the columns that they read, may not fit the data."
)


class NoRewardCheck:
    """Warns at the first such batch, and ends a run that never sees a reward."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._has_rewarded = False

    def add(self, rewarded: bool) -> None:
        """Count one batch.

        Args:
            rewarded: whether any function gave any completion a reward.

        Raises:
            RewardError: no batch since the start had a reward.
        """
        self._has_rewarded |= rewarded
        self._in_a_row = 0 if rewarded else self._in_a_row + 1
        if rewarded:
            return
        log_once(_log, _NOTHING)
        if not self._has_rewarded and self._in_a_row >= MAX_BATCHES:
            raise RewardError(
                f"No reward function has given any completion a reward in {MAX_BATCHES} batches, so the model has "
                "learned nothing: rewards.funcs returned None (or failed, with rewards.on_error=skip) for all of them. "
                "Check what they return, and whether the data has the columns that they read (docs/custom_rewards.md)."
            )
