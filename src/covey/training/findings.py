"""What the checks before a run find: fine, worth a look, or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SAMPLE = 1000
"""How many rows of each set are looked at."""


class Mark(StrEnum):
    """How a check ended."""

    FINE = "✓"
    LOOK = "!"
    WRONG = "✗"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's table."""

    mark: Mark
    check: str
    """What was looked at, in a word or two."""
    seen: str
    """What was seen."""
    advice: str = ""
    """What to do about it."""


def worst(findings: Sequence[Finding]) -> Mark:
    """The gravest mark among them."""
    marks = {finding.mark for finding in findings}
    return next((mark for mark in (Mark.WRONG, Mark.LOOK) if mark in marks), Mark.FINE)
