"""GSM8K shaping: four rewards with which small models learn GSM8K, for format, nearly right and right answers.

Source of all four: the GRPO tutorials of Unsloth and Google's Tunix for Gemma, in the point values of Tunix. The
patterns of the originals are searched for by position here, which takes linear time on any text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from covey.answers import Outcome, Tags, canonical_number, extract_answer_tag
from covey.rewards.library.format import tag_marks
from covey.rewards.reward import Graded, gold_text
from covey.rewards.settings import RewardSettings

_BLANKS = r"[^\S\n]*"  # white space that stays on its line
_NUMBER = re.compile(r"(?:(?<![\w)])[-−])?(?:\d+(?:,\d{3}(?!\d))*(?:\.\d*)?|\.\d+)", re.ASCII)
_MAX_NUMBER = 100  # characters
_PLAIN = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?\s*", re.ASCII)


def match_format_exactly(text: str, settings: RewardSettings) -> float:
    """3 where thinking and answer follow each other, both closed and neither empty, else 0.

    `<think>` must come first on its line and `</answer>` last on its line; text before, between and after is free.

    Range: 0 or 3.
    """
    return 3.0 if formatted_answer(text, settings.tags) is not None else 0.0


def match_format_approximately(text: str, settings: RewardSettings) -> float:
    """For each of `<think>`, `</think>`, `<answer>`, `</answer>`: +0.5 where it occurs exactly once, else -0.5.

    Range: -2 to 2, in whole numbers.
    """
    return sum(0.5 if text.count(tag) == 1 else -0.5 for tag in tag_marks(settings.tags))


def check_answer(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    """Points for the answer of a completion that `match_format_exactly` accepts; 0 for any other.

    3 for exactly the gold answer; 1.5 if the white space around it differs; 0.5 for a number within a tenth of
    the gold one, 0.25 within a fifth, -1 for any other number; -0.5 if one of the two is not a number (or gold is 0).

    Range: -1 to 3, None without a gold answer.
    """
    gold, guess = gold_text(row), formatted_answer(text, settings.tags)
    if gold is None:
        return Graded(None, Outcome.UNPARSABLE_GOLD)
    if guess is None:
        stated = extract_answer_tag(text, settings.tags.answer) is not None
        return Graded(0.0, Outcome.WRONG_FORM if stated else Outcome.UNPARSABLE_PREDICTION)
    if guess.strip() == gold.strip():
        return Graded(3.0 if guess == gold else 1.5, Outcome.RIGHT)
    near, far = _number(guess), _number(gold)
    if near is None or not far:
        return Graded(-0.5, Outcome.WRONG)
    ratio = near / far
    value = 0.5 if 0.9 <= ratio <= 1.1 else 0.25 if 0.8 <= ratio <= 1.2 else -1.0
    return Graded(value, Outcome.WRONG)


def check_numbers(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    """1.5 where the first number after the first `<answer>` is the gold number, else 0.

    Where the tag closes, the number must come before that. A minus sign and commas between thousands belong to a
    number; the originals do without all three.

    Range: 0 or 1.5, None if the gold answer is not a number.
    """
    gold = gold_text(row)
    wanted = _number(canonical_number(gold)) if gold is not None else None
    if gold is None or wanted is None:
        return Graded(None, Outcome.UNPARSABLE_GOLD)
    _, _, opening, closing = tag_marks(settings.tags)
    _, found, rest = text.partition(opening)
    number = _NUMBER.search(rest.partition(closing)[0]) if found else None
    if number is None:
        return Graded(0.0, Outcome.UNPARSABLE_PREDICTION)
    same = canonical_number(number.group()) == canonical_number(gold)
    return Graded(1.5, Outcome.RIGHT) if same else Graded(0.0, Outcome.WRONG)


def formatted_answer(text: str, tags: Tags) -> str | None:
    """The unstripped content of the answer tags of a text in the format of `match_format_exactly`; None for others.

    Each tag is matched at its first allowed position; a later position could not succeed where the
    first one fails, so there is no backtracking.
    """
    think, think_end, answer, answer_end = tag_marks(tags)
    start = re.search(rf"^{_BLANKS}{re.escape(think)}", text, re.MULTILINE)
    if start is None:
        return None
    middle = text.find(think_end, start.end() + 1)  # + 1: not empty
    begin = text.find(answer, middle + len(think_end)) if middle >= 0 else -1
    if begin < 0:
        return None
    begin += len(answer)
    end = re.compile(rf"{re.escape(answer_end)}{_BLANKS}$", re.MULTILINE).search(text, begin + 1)
    return text[begin : end.start()] if end else None


def _number(text: str) -> float | None:
    """A plain decimal number; not the `nan`, `inf` and `1_000` that `float` takes too."""
    value = float(text) if len(text) <= _MAX_NUMBER and _PLAIN.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None
