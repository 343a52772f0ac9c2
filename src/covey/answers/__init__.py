"""Extracting and grading answers: pure functions, the same for data, rewards and evaluation."""

from covey.answers.extract import EXTRACTORS, extract_answer_tag, extract_boxed, extract_gsm8k, has_reasoning_format
from covey.answers.grade import Outcome, canonical_number, grade_exact

__all__ = [
    "EXTRACTORS",
    "Outcome",
    "canonical_number",
    "extract_answer_tag",
    "extract_boxed",
    "extract_gsm8k",
    "grade_exact",
    "has_reasoning_format",
]
