"""The problems of the study. study.yaml trains on the same kind; a test compares the two."""

from __future__ import annotations

from covey.data.countdown import Difficulty, Problem, take

DIFFICULTY = Difficulty(min_digits=1, max_digits=1, min_operands=4, max_operands=4)
"""Four numbers of one digit, + - * /. Half of the held-out problems have five different right answers or more."""
HELD_OUT = 256
SEED = 20_000
"""Draws the held-out problems and the completions that a model is judged by; the same for every model."""


def held_out() -> list[Problem]:
    """What every model is judged by: problems of the split that is never trained on, none twice."""
    return take(DIFFICULTY, "test", SEED, HELD_OUT, unique=True)
