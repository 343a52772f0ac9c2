"""Finding the answer inside a text: a data row's solution, or what a model wrote. None means that there is none."""

from __future__ import annotations

import re
from collections.abc import Callable

_ANSWER_OPEN, _ANSWER_CLOSE = "<answer>", "</answer>"
_REASONING = re.compile(
    r"\s*<think>((?:(?!</?think>|</?answer>).)*)</think>\s*<answer>((?:(?!</?think>|</?answer>).)*)</answer>\s*",
    re.DOTALL,
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character, whatever it is, or a brace
_GSM8K_MARK = "####"


def extract_answer_tag(text: str) -> str | None:
    """The text inside the last closed `<answer>…</answer>`, stripped; None without one, or when it is empty.

    Searched by position, not by a pattern: a runaway completion that only repeats `<answer>` costs linear time.
    """
    start = text.rfind(_ANSWER_OPEN, 0, max(0, text.rfind(_ANSWER_CLOSE)))
    if start < 0:
        return None
    begin = start + len(_ANSWER_OPEN)
    return text[begin : text.index(_ANSWER_CLOSE, begin)].strip() or None


def extract_gsm8k(text: str) -> str | None:
    """GSM8K's final answer: what follows the last `####`, without thousands separators."""
    _, mark, answer = text.rpartition(_GSM8K_MARK)
    return (answer.strip().replace(",", "") or None) if mark else None


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`, braces matched; None where there is none or it never closes.

    An escaped brace (`\{`) is text, not structure: `\boxed{\left\{1\right.}` closes where it should.
    """
    start = max(text.rfind(r"\boxed{"), text.rfind(r"\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for mark in _BRACE.finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(mark.group(), 0)
        if depth == 0:
            return text[begin : mark.start()].strip() or None
    return None


def has_reasoning_format(text: str) -> bool:
    """Whether the whole text is one `<think>…</think>` followed by one `<answer>…</answer>`, white space aside."""
    return _REASONING.fullmatch(text) is not None


def _whole(text: str) -> str | None:
    return text.strip() or None


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "none": _whole,
    "gsm8k": extract_gsm8k,
    "boxed": extract_boxed,
    "answer_tag": extract_answer_tag,
}
"""The values of `dataset.answer_extractor`."""
