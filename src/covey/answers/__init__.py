"""Extracting and grading answers, by pure functions that data, rewards and evaluation share."""

from covey.answers.extract import (
    EXTRACTORS,
    Tags,
    extract_answer_tag,
    extract_boxed,
    extract_gsm8k,
    extractor,
    has_reasoning_format,
    has_think_format,
)
from covey.answers.grade import Outcome, answers_agree, gold_answer, grade_exact, grade_math
from covey.answers.maths.notation import canonical_number
from covey.answers.statement import extract_prediction, final_answer
from covey.answers.watch import VALUE_GRADERS, holds_gold_value, repeats_prompt, without_tags

__all__ = [
    "EXTRACTORS",
    "VALUE_GRADERS",
    "Outcome",
    "Tags",
    "answers_agree",
    "canonical_number",
    "extract_answer_tag",
    "extract_boxed",
    "extract_gsm8k",
    "extract_prediction",
    "extractor",
    "final_answer",
    "gold_answer",
    "grade_exact",
    "grade_math",
    "has_reasoning_format",
    "has_think_format",
    "holds_gold_value",
    "repeats_prompt",
    "without_tags",
]
