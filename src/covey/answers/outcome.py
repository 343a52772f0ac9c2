"""The outcomes of grading a completion."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of grading one completion. The functions of this package return the first six."""

    RIGHT = "right"
    WRONG = "wrong"
    UNPARSABLE_PREDICTION = "unparsable_prediction"
    """The completion states no answer, or none that can be read."""
    UNEVALUATED = "unevaluated"
    """The answer is equal to the gold answer only once it is evaluated, as `92 + 88` is to 180, or copied out of the
    question."""
    WRONG_FORM = "wrong_form"
    """The completion states an answer, but does not have the form that its grader asks for."""
    UNPARSABLE_GOLD = "unparsable_gold"
    """The data's answer cannot be read, and the prediction is not the same text: it is neither right nor wrong."""
    TIMED_OUT = "timed_out"
    """The worker process that graded it overran its deadline."""
    CRASHED = "crashed"
    """The worker process that graded it died."""
