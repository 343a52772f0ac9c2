"""Whether an answer can be compared with others. If a gold answer cannot, the data is wrong, not the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from covey.answers.maths import structure, symbolic
from covey.answers.maths.latex import MAX_LENGTH, tidy, trim
from covey.answers.maths.numbers import read_number
from covey.answers.maths.quantity import measured, own, own_words

_WORD = re.compile(r"[A-Za-z][a-z']{3,}(?:-[a-z]+)*")  # of at least four letters: `xyz` may be a product
_WHOLE_TEXT = re.compile(r"\s*(?:\\text\{[^{}]*\}\s*)+")
_MAX_DEPTH = 6
_MAX_BRACKETS = 30


def is_bounded(text: str) -> bool:
    """Whether a tidied answer is short and flat enough to be parsed; others are compared as text."""
    return 0 < len(text) <= MAX_LENGTH and structure.depth(text) <= _MAX_BRACKETS


@lru_cache(maxsize=4096)
def is_readable(text: str) -> bool:
    """Whether an answer can be compared: it is a number, a word, a choice, mathematics, or a collection of these."""
    text = tidy(text)
    token = own.set(own_words(text))
    try:
        return is_bounded(text) and _is_readable(text, 0)
    finally:
        own.reset(token)


def _is_readable(text: str, depth: int) -> bool:
    text = structure.MODULUS.sub("", text)
    core = measured(text).core
    if read_number(core) is not None or structure.read_choice(text) or is_word(text):
        return True
    if structure.read_clock(text) is not None or structure.read_matrix(text) is not None:
        return True
    if depth > _MAX_DEPTH:
        return False
    parts: Sequence[str] = ()
    if collection := structure.read_collection(text):
        parts = collection.items
    elif (region := structure.read_region(text)) is not None and (region[0] or len(region[1]) > 1):
        parts = [end for interval in region[1] for end in (interval.low, interval.high)]
    elif named := structure.read_named(text):
        parts = [named.value]
    elif sides := structure.sides(text):
        parts = sides
    elif compared := structure.relations(text):
        parts = [side for _, left, right in compared for side in (left, right)]
    elif ratio := structure.read_ratio(text):
        parts = ratio
    if parts:
        return all(_is_readable(trim(part), depth + 1) for part in parts)
    return symbolic.read(core) is not None


def is_word(text: str) -> bool:
    r"""Whether an answer is one word, or words that LaTeX marks as text: `odd`, `\text{not possible}`."""
    return bool(_WORD.fullmatch(text) or _WHOLE_TEXT.fullmatch(text))
