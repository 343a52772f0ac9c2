"""Reporting that the user's own code was edited while a run trains with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from covey.importing import code_hashes
from covey.runlog.own_code import edited

logger = logging.getLogger(__name__)


class OwnCodeCallback(TrainerCallback):
    """Reports a file of the user's own parts that is edited: worker processes that start later import the new version.

    Args:
        names: the parts, `Config.own_code`.
        kept_in: the folder with the copies of the start, for the message.
        note: shows the user a line, in addition to the log.
    """

    def __init__(self, names: Sequence[str], kept_in: Path, note: Callable[[str], None]) -> None:
        self._names, self._kept_in, self._note = names, kept_in, note
        self._known = code_hashes(names)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        now = code_hashes(self._names)
        found = edited(self._known, now)
        self._known |= now
        if not found:
            return
        text = (
            f"The file of {', '.join(found)} was edited by step {state.global_step}. What is loaded stays as it was; "
            "worker processes that start from now on, and a resume, import the new version, so rewards may change "
            f"within the run. {self._kept_in} has the version of the start."
        )
        logger.warning("%s", text)
        self._note(f"WARNING: {text}")
