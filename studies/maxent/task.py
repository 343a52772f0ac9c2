"""The problems of the study. study.yaml trains on the same kind; a test compares the two."""

from __future__ import annotations

from covey.data.sources.countdown import CountdownDifficulty, CountdownProblem, take

DIFFICULTY = CountdownDifficulty(min_digits=1, max_digits=1, min_operands=4, max_operands=4)
"""Four numbers of one digit, + - * /. Half of the held-out problems have five different right answers or more."""
HELD_OUT = 256
SEED = 20_000
"""Seed of the held-out problems and of the completions; the same for every model."""


def held_out() -> list[CountdownProblem]:
    """The held-out problems: of the split that is never trained on, without duplicates."""
    return take(DIFFICULTY, "test", SEED, HELD_OUT, unique=True)
