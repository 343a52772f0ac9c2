"""Grading a completion against the gold answer, with a typed outcome."""

from __future__ import annotations

from enum import StrEnum

from covey.answers.extract import TAGS, Tags, closing_brace, extract_answer_tag, has_reasoning_format
from covey.answers.maths.agree import agree, is_readable
from covey.answers.maths.notation import MAX_LENGTH, canonical_number
from covey.answers.maths.shape import is_copied
from covey.answers.statement import extract_prediction, marked


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


def grade_exact(completion: str, gold: str, tags: Tags = TAGS, strict: bool = False) -> Outcome:
    """Compare the last `<answer>…</answer>` of a completion with the gold answer, numbers in canonical form.

    Args:
        strict: the whole completion must be `<think>…</think><answer>…</answer>`; else it has the wrong form.
    """
    predicted = extract_answer_tag(completion, tags.answer)
    if predicted is None:
        return Outcome.UNPARSABLE_PREDICTION
    if strict and not has_reasoning_format(completion, tags):
        return Outcome.WRONG_FORM
    return Outcome.RIGHT if canonical_number(predicted) == canonical_number(gold) else Outcome.WRONG


def grade_math(completion: str, gold: str, tags: Tags = TAGS, *, question: str | None = None) -> Outcome:
    """Compare the answer that a completion states with the gold answer, as mathematics.

    The grader of the reward `accuracy`. It depends only on `extract_prediction(completion, tags)`, `gold` and the
    question, so results can be cached by these. It has no timer: run it under a deadline.

    Args:
        completion: its answer is found as `covey.answers.statement` describes.
        gold: the right answer, bare or in a worked solution that marks it with tags, a box or `####`.
        question: the last user message; an answer copied out of it is no answer.

    Returns:
        RIGHT or WRONG; UNEVALUATED where the answer equals the gold answer, but is not in final form or is copied out
        of the question (`covey.answers.maths.shape`); UNPARSABLE_PREDICTION where the completion states no answer
        that can be read; and UNPARSABLE_GOLD where the gold answer cannot be read and the prediction is not the same
        text.
    """
    prediction = extract_prediction(completion, tags)
    if prediction is None:
        return Outcome.UNPARSABLE_PREDICTION
    return answers_agree(prediction, gold, tags, question=question)


def answers_agree(prediction: str, gold: str, tags: Tags = TAGS, *, question: str | None = None) -> Outcome:
    """Compare two bare answers. The outcomes are those of `grade_math`."""
    target = gold_answer(gold, tags)
    if canonical_number(prediction) == canonical_number(target) != "":
        return Outcome.RIGHT
    agreed = agree(target, prediction, question or "")
    if agreed is None or (agreed and question and is_copied(prediction, target, question)):
        return Outcome.UNEVALUATED
    if agreed:
        return Outcome.RIGHT
    if not is_readable(target):
        return Outcome.UNPARSABLE_GOLD
    return Outcome.WRONG if is_readable(prediction) else Outcome.UNPARSABLE_PREDICTION


def gold_answer(gold: str, tags: Tags = TAGS) -> str:
    r"""The answer in the data's text: inside answer tags, in `\boxed{…}`, after `####`, or all of it."""
    inside = extract_answer_tag(gold, tags.answer)
    if inside is not None:
        gold = inside
    if found := marked(gold):
        return found
    _, mark, rest = gold.rpartition(r"\boxed{")  # one that never closes
    return rest.strip() if mark and len(rest) <= MAX_LENGTH and closing_brace(rest, 0) is None else gold.strip()
