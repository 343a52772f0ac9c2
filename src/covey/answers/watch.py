"""Two signs that completions are paid for what no grader foresees, measured on text alone, cheap and never in doubt.

Completions repeat the question, or right ones hardly ever hold the gold answer's value: a policy that found a hole in a
grader does one or the other.
"""

from __future__ import annotations

import re
from dataclasses import replace

from covey.answers.extract import TAGS, Tags
from covey.answers.grade import gold_answer
from covey.answers.maths.notation import agree_in_percent, measured, read_number, tidy, trim, unicode_to_latex
from covey.answers.maths.shape import is_copied
from covey.answers.statement import after_thinking

VALUE_GRADERS = ("accuracy", "exact_match")
"""The graders whose right completions should hold the gold answer's value."""

_LONGEST = 20_000  # characters of a completion that are searched, at its end
_FEWEST_WORDS = 4
_WORDS = re.compile(r"\w+")
_BOX = re.compile(r"[$\s]*\\(?:boxed|fbox)\s*\{(.*)\}[$\s.]*", re.DOTALL)  # and nothing else
_LITERAL = re.compile(
    r"(?:\d+\s*)?\\[dt]?frac(?:\s*\{\s*-?\d+\s*\}\s*\{\s*\d+\s*\}|\s?\d\s?\d)|\d+ \d+/\d+"
    r"|\d[\d,]*(?:\.\d+)? (?:hundred|thousand|million|billion|trillion)|\d[\d,]*(?:\.\d+)?\s*/\s*\d+"
    r"|\d[\d,]*(?:\.\d+)?|\.\d+",
    re.ASCII,
)


def without_tags(text: str, tags: Tags = TAGS) -> str:
    """A text without the tags of thinking and answer, whose content stays, stripped."""
    return re.sub(rf"</?(?:{re.escape(tags.think)}|{re.escape(tags.answer)})>", " ", text).strip()


def repeats_prompt(completion: str, question: str, gold: str | None, tags: Tags = TAGS) -> bool:
    """Whether the final text of a completion, after its thinking and without tags, is a contiguous piece of the
    question with an operator or at least four words, and is not the gold answer.

    Args:
        completion: its text.
        question: the last user message.
        gold: the gold answer; None where there is none.
        tags: of thinking and answer.
    """
    text = after_thinking(completion[-_LONGEST:], tags)
    if text is None or not question:
        return False
    text = without_tags(text, tags)
    text = box[1] if (box := _BOX.fullmatch(text)) else text
    if len(text) > 2 * len(question):  # no piece of it, whatever the white space
        return False
    target = gold_answer(gold, tags) if gold is not None else ""
    words = _words(text)
    if sum(map(str.isalpha, words.split())) >= _FEWEST_WORDS and words != _words(target):
        return words in _words(question)
    return is_copied(text, target, question)


def _words(text: str) -> str:
    """The words of a text, each between spaces; signs between them do not matter."""
    return f" {' '.join(_WORDS.findall(text.casefold()))} "


def holds_gold_value(completion: str, gold: str) -> bool | None:
    """Whether a completion has a number equal to the gold answer, as written or as a percentage, whatever its sign.

    None where the gold answer is not a number.
    """
    target = read_number(measured(trim(tidy(gold_answer(gold)))).core)
    if target is None:
        return None
    target = replace(target, value=abs(target.value))
    literals = dict.fromkeys(found.group() for found in _LITERAL.finditer(unicode_to_latex(completion[-_LONGEST:])))
    held = [number for text in literals if (number := read_number(trim(tidy(text)))) is not None]
    return any(
        agree_in_percent(target, number, *percent) for number in held for percent in ((True, False), (False, True))
    )
