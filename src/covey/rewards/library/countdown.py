"""The countdown game: reach a target with given numbers and the four operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from covey.answers import Outcome, final_answer
from covey.answers.tasks.countdown import evaluate, read_task
from covey.answers.tasks.expressions import UnreadableExpressionError, canonical
from covey.rewards.reward import Graded, gold_value
from covey.rewards.settings import RewardSettings


def countdown(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    r"""1 where the completion's expression uses every given number exactly once and equals the target, else 0.

    The expression is the content of the last `<answer>…</answer>` after the thinking, or else of the last `\boxed{…}`:
    the given numbers, + - * / (or × ÷ −), signs and parentheses. An `= target` at its end is allowed if it is true.
    Values are exact fractions, so `8 / (3 - 8 / 3)` is 24. Anything else, names and powers among it, cannot be read and
    scores 0.

    The gold answer is `{"numbers": [3, 3, 8, 8], "target": 24}`, as JSON or as a mapping; any right expression counts.
    Its mode is its canonical form (`covey.answers.tasks.expressions`): `1+2` and `(2)+1` are one answer.

    Range: 0 or 1, None where the gold answer cannot be read. Source: TinyZero's countdown task, without its 0.1 for a
    wrong answer in the right format (`format` rewards that).
    """
    task = read_task(gold_value(row))
    if task is None:
        return Graded(None, Outcome.UNPARSABLE_GOLD)
    numbers, target = task
    expression = final_answer(text, settings.tags)
    if expression is None:
        return Graded(0.0, Outcome.UNPARSABLE_PREDICTION)
    try:
        value, used, stated = evaluate(expression)
    except UnreadableExpressionError:
        return Graded(0.0, Outcome.UNPARSABLE_PREDICTION)
    except ZeroDivisionError:
        return Graded(0.0, Outcome.WRONG)
    right = value == target and stated in (None, target) and Counter(used) == Counter(numbers)
    mode = canonical(expression) if right or len(used) <= len(numbers) else None
    return Graded(float(right), Outcome.RIGHT if right else Outcome.WRONG, mode=mode)
