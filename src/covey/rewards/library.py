"""The rewards that come with Covey.

A reward is a function `(prompts, completions, **columns) -> list[float | None]`, TRL's own signature: `columns` holds
the data's other columns, one value per completion. None means that the reward does not apply to this row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.answers import Outcome, grade_exact, has_reasoning_format


def exact_match(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[str], **columns: Any
) -> list[float]:
    """1.0 where the last `<answer>…</answer>` of a completion is the row's answer (numbers in any spelling), or 0.0."""
    return [
        float(grade_exact(completion_text(completion), gold) is Outcome.RIGHT)
        for completion, gold in zip(completions, answer, strict=True)
    ]


def format_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """1.0 where the whole completion is `<think>…</think>` followed by `<answer>…</answer>`, else 0.0."""
    return [float(has_reasoning_format(completion_text(completion))) for completion in completions]


def completion_text(completion: Any) -> str:
    """The text of a completion: itself, or the content of the last message of a conversational one."""
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"] if completion else ""
    return content or ""  # a message that only calls a tool has no content
