"""Rewards for an answer that equals the gold answer, and for the format of a completion, in linear time."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

from covey.answers import (
    Outcome,
    Tags,
    extract_prediction,
    grade_exact,
    grade_math,
    has_reasoning_format,
    has_think_format,
)
from covey.answers.maths.shape import needs_question
from covey.rewards.reward import Graded, RewardSettings, gold_text, last_user_message

VALUES: Mapping[Outcome, float | None] = MappingProxyType(
    {
        Outcome.RIGHT: 1.0,
        Outcome.WRONG: 0.0,
        Outcome.UNEVALUATED: 0.0,
        Outcome.UNPARSABLE_PREDICTION: 0.0,
        Outcome.WRONG_FORM: 0.0,
        Outcome.TIMED_OUT: 0.0,  # else a model could learn to write what cannot be checked in time
        Outcome.UNPARSABLE_GOLD: None,
        Outcome.CRASHED: None,
    }
)
"""The reward of each outcome: 0 for the model's mistakes, None for what is not its fault."""

_MAX_KEY = 1000  # characters of gold answer and prediction
_MAX_TEXT = 4000  # characters after the thinking; the key is made in the trainer's process, without a deadline
_MAX_QUESTION = 4000  # characters


def accuracy(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    r"""1 where the completion's answer equals the gold answer as mathematics, 0 where it does not, None where that is
    unknown.

    The answer is what the last `<answer>…</answer>` states, or else the last `\boxed{…}`, or else the text without such
    marks; docs/grading.md has the order. Equality is decided by `grade_math`. Where the gold answer cannot be parsed, a
    completion with the same normalised text scores 1, one that states no answer 0, and any other None. An answer that
    is not in final form, or that is copied out of the question, scores 0 (`covey.answers.maths.shape`), or 1 with
    `rewards.unevaluated=accept`.

    Range: 0, 1 or None. Source: the accuracy reward of DeepSeek-R1 (arXiv 2501.12948, section 2.2.2), as open-r1 and
    TRL compute it. Both give None to every completion when the gold answer cannot be parsed; open-r1 gave 1 at first.
    """
    gold = gold_text(row)
    if gold is None:
        return Graded(None, Outcome.UNPARSABLE_GOLD)
    outcome = grade_math(text, gold, settings.tags, question=last_user_message(row.get("prompt")))
    if outcome is Outcome.UNEVALUATED and settings.unevaluated == "accept":
        outcome = Outcome.RIGHT
    return Graded(VALUES[outcome], outcome)


def accuracy_key(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Hashable | None:
    """What `accuracy` depends on: gold answer, prediction and, where it may be copied, the question.

    None where they are missing or long to find.
    """
    gold = gold_text(row)
    if gold is None or len(text.rpartition(f"</{settings.tags.think}>")[2]) > _MAX_TEXT:
        return None
    prediction = extract_prediction(text, settings.tags)
    if prediction is None or len(gold) + len(prediction) > _MAX_KEY:
        return None
    question = last_user_message(row.get("prompt")) if needs_question(prediction) else ""
    return None if len(question) > _MAX_QUESTION else (gold, prediction, question)


def exact_match(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    """1 where the whole completion is `<think>…</think><answer>…</answer>` and the answer is the gold answer, else 0.

    White space around the parts is free. Numbers are compared in canonical form (`1,334.0` is `1334`), anything else as
    text: no mathematics is done, so the check is fast and never in doubt. Also known as `pure_accuracy_math`.

    Range: 0 or 1, None without a gold answer. Source: the rule-based accuracy and format rewards of DeepSeek-R1 (arXiv
    2501.12948, section 2.2.2) as one condition, as in MaxEnt-GRPO's exact match.
    """
    gold = gold_text(row)
    outcome = Outcome.UNPARSABLE_GOLD if gold is None else grade_exact(text, gold, settings.tags, strict=True)
    return Graded(VALUES[outcome], outcome)


_STEP = re.compile(r"Step \d+:|^\d+\.|\n[-*]|First,|Second,|Next,|Finally,", re.MULTILINE)
_STEPS_FOR_FULL_REWARD = 3


def format_score(text: str, settings: RewardSettings) -> float:
    """1 where the whole completion is `<think>…</think>` followed by `<answer>…</answer>`, else 0.

    White space around the parts is free; each tag may occur only once.

    Range: 0 or 1. Source: the format reward of DeepSeek-R1 (arXiv 2501.12948, section 2.2.2) and its prompt (table 1).
    Open-r1 also wants each tag on a line of its own; Covey does not.
    """
    return float(has_reasoning_format(text, settings.tags))


def think_format(text: str, settings: RewardSettings) -> float:
    """1 where the completion begins with its only `<think>` and a `</think>` follows somewhere, else 0.

    Range: 0 or 1. Source: TRL's `think_format_reward`, with the same value for every text: white space before `<think>`
    is not free, and a second `</think>` does no harm.
    """
    return float(has_think_format(text, settings.tags))


def tag_count(text: str, settings: RewardSettings) -> float:
    """A quarter for each of `<think>`, `</think>`, `<answer>`, `</answer>` that occurs exactly once.

    Range: 0 to 1, in quarters. Source: open-r1's `tag_count_reward`, after an example by Will Brown. Open-r1 counts a
    tag only on a line of its own; Covey does not, in step with `format`.
    """
    return sum(0.25 for tag in tag_marks(settings.tags) if text.count(tag) == 1)


def reasoning_steps(text: str, settings: RewardSettings) -> float:
    """A third for each sign of a step, up to 1: `min(1, steps / 3)`.

    Signs of a step are `Step 1:`, a line that begins with a number and a full stop, a line after the first that begins
    with a hyphen or an asterisk, and `First,`, `Second,`, `Next,`, `Finally,`.

    Range: 0, 1/3, 2/3, 1. Source: open-r1's `reasoning_steps_reward`, which by mistake sees a number only on the very
    first line.
    """
    return min(1.0, sum(1 for _ in _STEP.finditer(text)) / _STEPS_FOR_FULL_REWARD)


def tag_marks(tags: Tags) -> tuple[str, str, str, str]:
    """The four tags: thinking opened and closed, answer opened and closed."""
    return f"<{tags.think}>", f"</{tags.think}>", f"<{tags.answer}>", f"</{tags.answer}>"
