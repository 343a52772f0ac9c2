"""Rewards of single tasks: shaping for GSM8K, countdown, graph colouring, and what reasoning-gym scores itself.

Source of the four of GSM8K shaping, for format, nearly right and right answers: the GRPO tutorials of Unsloth and
Google's Tunix for Gemma, in the point values of Tunix. The patterns of the originals are searched for by position here,
which takes linear time on any text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from covey.answers import Outcome, Tags, canonical_number, extract_answer_tag, final_answer, reasoning_gym
from covey.answers.statement import after_thinking
from covey.answers.tasks import (
    UnreadableColoringError,
    UnreadableExpressionError,
    canonical,
    evaluate,
    full_coloring,
    is_proper,
    mode_of,
    read_coloring,
    read_countdown,
    read_graph,
)
from covey.errors import RewardError
from covey.rewards.library.answers import tag_marks
from covey.rewards.reward import Graded, Reward, RewardSettings, gold_text, gold_value, named, texts_of

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


def countdown(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    r"""1 where the completion's expression uses every given number exactly once and equals the target, else 0.

    The expression is the content of the last `<answer>…</answer>` after the thinking, or else of the last `\boxed{…}`:
    the given numbers, + - * / (or × ÷ −), signs and parentheses. An `= target` at its end is allowed if it is true.
    Values are exact fractions, so `8 / (3 - 8 / 3)` is 24. Anything else, names and powers among it, cannot be read and
    scores 0.

    The gold answer is `{"numbers": [3, 3, 8, 8], "target": 24}`, as JSON or as a mapping; any right expression counts.
    Its mode is its canonical form (`covey.answers.tasks`): `1+2` and `(2)+1` are one answer.

    Range: 0 or 1, None where the gold answer cannot be read. Source: TinyZero's countdown task, without its 0.1 for a
    wrong answer in the right format (`format` rewards that).
    """
    task = read_countdown(gold_value(row))
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


def graph_coloring(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    r"""1 where the completion gives every asked vertex one of three colours and no edge joins two of a colour, else 0.

    The answer is the content of the last `<answer>…</answer>` after the thinking, or else of the last `\boxed{…}`:
    vertices with their colours, as `A=red B=green`, `A: red, B: green` or `A=r B=g`. Given vertices may be repeated in
    their own colours.

    The gold answer is `{"vertices": "ABC", "edges": ["AB"], "given": {"A": "red"}}`, as JSON or as a mapping; any right
    colouring counts. Its mode is the colouring of all vertices.

    Range: 0 or 1, None where the gold answer cannot be read. Source: the task of "Exploration Should Act at the Group
    Level in RL LLM Fine-Tuning" (2026), as `dataset=graph_coloring` draws it.
    """
    graph = read_graph(gold_value(row))
    if graph is None:
        return Graded(None, Outcome.UNPARSABLE_GOLD)
    answer = final_answer(text, settings.tags)
    try:
        colors = read_coloring(answer or "")
    except UnreadableColoringError:
        return Graded(0.0, Outcome.UNPARSABLE_PREDICTION)
    full = full_coloring(graph, colors)
    if full is None:
        return Graded(0.0, Outcome.WRONG)
    right = is_proper(graph, full)
    return Graded(float(right), Outcome.RIGHT if right else Outcome.WRONG, mode=mode_of(graph, full))


_GYM = "reasoning_gym"
_GYM_SECONDS = reasoning_gym.STARTING + reasoning_gym.SECONDS


def score_reasoning_gym(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    """What the scorer of a reasoning-gym task gives the completion's answer: 1 where it is right.

    The answer is the content of the last `<answer>…</answer>`, or else all that follows the thinking. Many tasks give
    part of 1 to an answer that is nearly right or only in the right form, so right is a score of 1. The rows are those
    of `dataset=reasoning_gym`, whose column `reasoning_gym` holds the problem as its scorer needs it.

    Range: 0 to 1. Source: the library reasoning-gym, whose tasks each define `score_answer`.
    """
    after = after_thinking(text, settings.tags)
    answer = None if after is None else extract_answer_tag(after, settings.tags.answer) or after.strip() or None
    value = reasoning_gym.score(answer, row[reasoning_gym.COLUMN])
    if value >= 1:
        return Graded(value, Outcome.RIGHT)
    return Graded(value, Outcome.UNPARSABLE_PREDICTION if answer is None else Outcome.WRONG)


def build_reasoning_gym(settings: RewardSettings) -> Reward:
    """The reward, which reads the rows' own column in place of a gold answer."""

    def sample(text: str, row: Mapping[str, Any]) -> Graded:
        if row.get(reasoning_gym.COLUMN) is None:
            raise RewardError(
                f"The reward {_GYM} needs the column {reasoning_gym.COLUMN}, which rows of dataset=reasoning_gym have."
            )
        return score_reasoning_gym(text, row, settings)

    def batch(
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] | None = None,
        *,
        reasoning_gym: Sequence[str],
        **columns: Any,
    ) -> list[float | None]:
        texts = texts_of(_GYM, completions)
        rows = ({_GYM: problem} for problem in reasoning_gym)
        return [sample(text, row).value for text, row in zip(texts, rows, strict=True)]

    return Reward(
        _GYM,
        named(batch, _GYM, score_reasoning_gym),
        sample,
        reads=(reasoning_gym.COLUMN,),
        seconds=lambda row: _GYM_SECONDS,
    )
