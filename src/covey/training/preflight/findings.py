"""Findings of the checks before a run: fine, warning, or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SAMPLE = 1000
"""Rows of each set that are checked."""


class Mark(StrEnum):
    """The result of a check."""

    FINE = "✓"
    WARNING = "!"
    WRONG = "✗"


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """One line of the doctor's table."""

    mark: Mark
    check: str
    """What was checked, in a word or two."""
    result: str
    """What the check found."""
    advice: str = ""
    """What to do about it."""


def worst(findings: Sequence[PreflightFinding]) -> Mark:
    """The worst mark among them."""
    marks = {finding.mark for finding in findings}
    return next((mark for mark in (Mark.WRONG, Mark.WARNING) if mark in marks), Mark.FINE)
