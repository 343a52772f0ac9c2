"""Reporting that the user's own code was edited while a run trains with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.importing import code_hashes, is_given
from covey.runlog.own_code import edited

logger = logging.getLogger(__name__)


class OwnCodeCallback(TrainerCallback):
    """Reports a file of the user's own parts that is edited: worker processes that start later import the new version.

    Args:
        names: the parts, `covey.config.named_code.own_code`.
        kept_in: the folder with the copies of the start, for the message.
    """

    def __init__(self, names: Sequence[str], kept_in: Path) -> None:
        self._names = [name for name in names if not is_given(name)]  # an object goes to the workers as it is
        self._kept_in = kept_in
        self._known = code_hashes(self._names)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        now = code_hashes(self._names)
        found = edited(self._known, now)
        self._known |= now
        if found:
            text = "The file of %s was edited by step %d. What is loaded stays as it was; worker processes that start "
            text += "from now on, and a resume, import the new version. %s has the version of the start."
            logger.warning(text, ", ".join(found), state.global_step, self._kept_in)
