"""Rewards for the format of a completion, in linear time."""

from __future__ import annotations

import re

from covey.answers import Tags, has_reasoning_format, has_think_format
from covey.rewards.settings import RewardSettings

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
