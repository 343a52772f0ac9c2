"""What can become of one completion's grading."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What became of one completion's grading. The functions of this package give the first four of them."""

    RIGHT = "right"
    WRONG = "wrong"
    UNPARSABLE_PREDICTION = "unparsable_prediction"
    """The completion states no answer, or none that can be read."""
    UNPARSABLE_GOLD = "unparsable_gold"
    """The data's answer cannot be read, and the prediction is not the same text: nobody can say right or wrong."""
    TIMED_OUT = "timed_out"
    """The worker process that graded it overran its deadline."""
    CRASHED = "crashed"
    """The worker process that graded it died."""
