"""Extracting a marked answer from a text: a worked solution of the data, or a completion."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from covey.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tags:
    """The names of the thinking tag and the answer tag."""

    think: str = "think"
    answer: str = "answer"


TAGS = Tags()
"""The default tags."""

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character, whatever it is, or a brace
_GSM8K_MARK = "####"
_REGEX = "regex:"
_SEARCHED = 20_000  # characters that a user's pattern is applied to: it may need more than linear time


def extract_answer_tag(text: str, tag: str = "answer") -> str | None:
    """The text inside the last closed `<answer>…</answer>`, stripped; None without one, or when it is empty.

    Searched by position, not by a pattern: a runaway completion that only repeats `<answer>` costs linear time.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.rfind(opening, 0, max(0, text.rfind(closing)))
    if start < 0:
        return None
    begin = start + len(opening)
    return text[begin : text.index(closing, begin)].strip() or None


def extract_gsm8k(text: str) -> str | None:
    """GSM8K's final answer: the text after the last `####`, without thousands separators."""
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
    end = closing_brace(text, begin)
    return None if end is None else text[begin:end].strip() or None


def closing_brace(text: str, begin: int) -> int | None:
    """The position of the brace that closes the one just before `begin`; None if there is none."""
    depth = 1
    for mark in _BRACE.finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(mark.group(), 0)
        if depth == 0:
            return mark.start()
    return None


def has_reasoning_format(text: str, tags: Tags = TAGS) -> bool:
    """Whether the whole text is one `<think>…</think>` followed by one `<answer>…</answer>`, ignoring white space."""
    return _reasoning(tags).fullmatch(text) is not None


def has_think_format(text: str, tags: Tags = TAGS) -> bool:
    """Whether the text begins with the only `<think>` in it and a `</think>` follows; the rest is free.

    The format of models with a thinking mode. The rule is that of TRL's `think_format_reward`: nothing may come before
    `<think>`, not even white space, and a second `</think>` does not matter.
    """
    opening, closing = f"<{tags.think}>", f"</{tags.think}>"
    return text.startswith(opening) and text.count(opening) == 1 and closing in text


def open_thinking(text: str, tags: Tags = TAGS) -> str:
    """The thinking with which a text ends, its tag included; empty where no tag is open."""
    start = text.rfind(f"<{tags.think}>")
    return "" if start < 0 or f"</{tags.think}>" in text[start:] else text[start:]


@lru_cache(maxsize=16)
def _reasoning(tags: Tags) -> re.Pattern[str]:
    think, answer = re.escape(tags.think), re.escape(tags.answer)
    inside = rf"((?:(?!</?{think}>|</?{answer}>).)*)"
    return re.compile(rf"\s*<{think}>{inside}</{think}>\s*<{answer}>{inside}</{answer}>\s*", re.DOTALL)


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "none": lambda text: text.strip() or None,
    "gsm8k": extract_gsm8k,
    "boxed": extract_boxed,
    "answer_tag": extract_answer_tag,
}
"""The values of `dataset.answer_extractor`, in addition to `regex:PATTERN`."""


def extractor(name: str) -> Callable[[str], str | None]:
    """The function that finds an answer: one of `EXTRACTORS`, or for `regex:PATTERN` the pattern's last match.

    A match gives its first group, or all of it without a group. Only the last 20,000 characters of a text are searched.

    Raises:
        ConfigError: there is no such extractor, or the pattern is not a valid regular expression.
    """
    if name in EXTRACTORS:
        return EXTRACTORS[name]
    if not name.startswith(_REGEX):
        known = ", ".join(EXTRACTORS)
        raise ConfigError(
            f"dataset.answer_extractor={name} is not possible: it must be one of {known}, or {_REGEX}PATTERN."
        )
    try:
        pattern = re.compile(name.removeprefix(_REGEX))
    except re.error as error:
        raise ConfigError(f"dataset.answer_extractor={name} is not a valid regular expression: {error}.") from None

    def search(text: str) -> str | None:
        found = deque(pattern.finditer(text[-_SEARCHED:]), maxlen=1)
        answer = found[0].group(1 if pattern.groups else 0) if found else None
        return (answer or "").strip() or None

    return search
