"""Warnings of Covey reach the user, each kind a few times at most, and not what only costs time."""

from __future__ import annotations

import logging
from pathlib import Path

from covey.log_once import log_once
from covey.training.terminal import logging_to, showing_warnings

logger = logging.getLogger("covey.somewhere")


def test_which_warnings_are_shown(tmp_path: Path) -> None:
    shown: list[str] = []
    log = tmp_path / "log"
    with logging_to(log), showing_warnings(shown.append):
        for step in (1, 2):
            logger.warning("Stale by %d steps.", step)  # the same but for a number
        for name in "abcdef":
            logger.warning("%s is odd.", name)
        for text in ("first", "second", "third", "fourth"):  # texts of their own
            logger.warning("%s", f"{text}\nwith a traceback")
        logger.info("quiet")
        logging.getLogger("trl").warning("theirs")
        log_once(logger, "A fast path does not apply.", shown=False)
        log_once(logger, "It matters.")
        logger.warning("hf_" + "aB3" * 11)
    logger.warning("afterwards")
    assert shown == [
        "Stale by 1 steps.",
        *("a is odd.", "b is odd.", "c is odd."),
        *("first", "second", "third", "fourth"),
        "It matters.",
        "***",
    ]
    text = log.read_text()
    for part in ("Stale by 2 steps.", "f is odd.", "with a traceback", "theirs", "A fast path does not apply."):
        assert part in text
