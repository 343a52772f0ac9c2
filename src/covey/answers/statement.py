r"""Finding the answer in what a model wrote.

In this order: what the answer tags hold; the last `\boxed{…}` (several that stand together are a list); what follows
`####`; what follows the last "answer is", "Answer:" or "A:"; a text that is nothing but an answer; the last mathematics
or number of a text. Thinking is never the answer: only what follows `</think>` is looked at, and a thought that never
ends states none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from covey.answers.extract import TAGS, Tags, closing_brace, extract_answer_tag, extract_gsm8k

_LONGEST = 100_000  # characters of a completion that are searched, from its end
_STATEMENT = 400  # characters after "the answer is" that can hold the answer
_MAX_BOXES = 20

_BOX = re.compile(r"\\(?:(?:begin)?boxed|fbox)\s*\{")
_BARE_BOX = re.compile(r"\\boxed\s*(-?[\w.]+)")
_LATEX_NOISE = re.compile(r"\\(?:quad|qquad|text\w*|mbox|[,;:! ()\[\]])|[${}\\*]")
_END_MARKS = re.compile(r"<\|[^|<>]{1,40}\|>.*|I hope (?:it|this) is correct.*", re.DOTALL)
_CODE = re.compile(r"__\w+__|\blambda\b|\bimport\b|\bdef \w|\w\(\s*['\"]|\w\)?\.\w+\(")
_ANCHOR = re.compile(
    r"(?:\b(?:final\s+|correct\s+)?answer\b(?:[^.\n:=$\\]{0,60}?)(?:\s(?:is|are|was|be|equals)\b\s*:?|\s*\*{0,2}\s*[:=])"
    r"|\banswer(?=\s*\*{0,2}\s*(?:\$|\\[(\[]|\n))|^\s*A\s*:)[\s*]*",
    re.IGNORECASE | re.MULTILINE,
)
_MATH = re.compile(  # the bounds keep marks that never close from costing more than linear time
    r"\$\$(?P<double>[^$]{1,1000})\$\$|(?<!\\)\$(?P<single>(?:\\\$|[^$]){1,500}?)(?<!\\)\$"
    r"|\\\((?P<round>.{1,300}?)\\\)|\\\[(?P<square>.{1,1000}?)\\\]",
    re.DOTALL,
)
_JOIN = re.compile(r"\s*(?:,?\s*(?:and|or)\b|,|;)\s*", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![\w.\\])[-+\N{MINUS SIGN}]?\s?[$€£]?\s?"
    r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+(?!\d)|\d+)?(?:[.,]\d+|(?<=\d))(?:\s*/\s*\d+)?(?:\s*\\?%)?",
    re.ASCII,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n|\bbecause\b|\bsince\b|,\s+(?:so|which|because|as)\b")
_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+")
_IS = re.compile(r"\b(?:is|are|was|equals|equal to|be)\b|=", re.IGNORECASE)
_SENTENCE_WORD = re.compile(
    r"(?:is|are|was|were|the|this|that|these|therefore|thus|hence|so|we|you|it|they|ha(?:ve|s|d)|gets?|finds?|needs?"
    r"|because|since|there|then|which|must|let|but|not|will|can|would|should)",
    re.IGNORECASE,
)
_PLAIN_MATH = re.compile(r"and|or|sqrt|pi|sin|cos|tan|log|ln", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TEXT_COMMAND = re.compile(r"\\[a-zA-Z]+\s*\{[^{}]*\}|\\[a-zA-Z]+")
_QUOTES = re.compile(r"^(?:[\s:*'\"`]|\\(?=[\"']))+")
_LABEL = re.compile(r"[A-Za-z][A-Za-z ]{2,30}:\s+(?=\S)")


def extract_prediction(completion: str, tags: Tags = TAGS) -> str | None:
    """The answer that a completion states, as text; None when it states none.

    It is found by its marks where there are any, else as a reader would find it (see the module's docstring for the
    order). Linear in the length of the completion, of which the last 100,000 characters count.
    """
    text = after_thinking(completion[-_LONGEST:], tags)
    if text is None:
        return None
    inside = extract_answer_tag(text, tags.answer)
    if inside is not None:
        return boxes(inside) or inside
    return marked(text) or _stated(_END_MARKS.sub("", text))


def after_thinking(text: str, tags: Tags) -> str | None:
    """What follows the last `</think>`, or all of a text that does not think; None while a thought is open."""
    opening, closing = f"<{tags.think}>", f"</{tags.think}>"
    before, mark, after = text.rpartition(closing)
    if mark and opening not in after:
        return after if after.strip() else None
    if opening in after:
        return None
    return before + mark + after


def marked(text: str) -> str | None:
    r"""The answer in the last boxes, or after the last `####`, of a text without tags."""
    return boxes(text) or (extract_gsm8k(text.rstrip()) if "####" in text else None)


def boxes(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`, or of the last few that stand together ("\boxed{1} and \boxed{2}")."""
    found = _closed_boxes(text)
    if not found:
        bare = list(_BARE_BOX.finditer(text))
        return bare[-1][1] if bare else None
    joined = [found[-1]]
    for box in reversed(found[:-1]):
        if len(joined) == _MAX_BOXES or not _stand_together(text[box[1] + 1 : joined[0][0]]):
            break
        joined.insert(0, box)
    contents = [text[text.index("{", begin) + 1 : end].strip() for begin, end in joined]
    return ", ".join(dict.fromkeys(content for content in contents if content)) or None


def _closed_boxes(text: str) -> list[tuple[int, int]]:
    """(start, closing brace) of the outermost closed boxes among the last few, in order."""
    starts = list(_BOX.finditer(text))[-2 * _MAX_BOXES :]
    found: list[tuple[int, int]] = []
    for start in starts:
        if found and start.start() < found[-1][1]:
            found.pop()  # a box in a box: the inner one is the answer
        end = closing_brace(text, start.end())
        if end is not None:
            found.append((start.start(), end))
    return found


def _stand_together(between: str) -> bool:
    if len(between) > 60 or "\n\n" in between:
        return False
    plain = _LATEX_NOISE.sub(" ", between)
    words = re.findall(r"[A-Za-z]+", plain)
    if re.search(r"[.?!=]", plain):
        return False
    return not words or words[-1].lower() in ("and", "or")


def _stated(text: str) -> str | None:
    """The answer of a text without marks."""
    text = text.strip()
    if not text or _CODE.search(text):
        return None
    for start in reversed([found.end() for found in _ANCHOR.finditer(text)][-5:]):
        if found := _at(text[start : start + _STATEMENT]):
            return found
    if _is_bare(text):
        label = _LABEL.match(text)
        return text if label is None else _at(text[label.end() :])
    return _predicate(text) or _last(text)


def _predicate(text: str) -> str | None:
    """What the last sentence says something "is", if it is a bare answer."""
    sentence = next((part for part in reversed(_SENTENCES.split(text[-_STATEMENT:])) if part.strip()), "")
    value = _IS.split(sentence)[-1].strip()
    stated = len(value) < len(sentence.strip()) and any(c.isdigit() or c == "\\" for c in value)
    return value if stated and _is_bare(value) and _MATH.search(value) is None else None


def _at(rest: str) -> str | None:
    """The answer at the beginning of what follows "the answer is"."""
    rest = _QUOTES.sub("", rest)
    if environment := _MATH.match(rest):
        return _joined(rest, environment)
    end = _SENTENCE_END.search(rest)
    sentence = (rest[: end.start()] if end else rest).strip()
    if not sentence:
        return None
    if _is_bare(sentence):
        return sentence.rstrip("*")
    if number := _number_at(sentence):
        return number
    predicates = list(_IS.finditer(sentence))
    if predicates:
        value = sentence[predicates[-1].end() :].strip()
        if environment := _MATH.match(value):
            return _joined(value, environment)
        if value and _is_bare(value):
            return value
    return _last(sentence)


def _number_at(sentence: str) -> str | None:
    found = next(_numbers(sentence), None)
    return sentence[: found[1]].strip() if found and not sentence[: found[0]].strip("$ ") else None


def _joined(text: str, first: re.Match[str]) -> str:
    """The mathematics of one environment and of those that follow it with "and", "or" or a comma."""
    contents, end = [_content(first)], first.end()
    while (join := _JOIN.match(text, end)) and (following := _MATH.match(text, join.end())):
        contents.append(_content(following))
        end = following.end()
    percent = re.match(r"\s*(?:\\?%|percent|pct)", text[end:])
    return ", ".join(contents) + (r"\%" if percent else "")


def _content(found: re.Match[str]) -> str:
    return next(value for value in found.groupdict().values() if value is not None).strip()


def _is_bare(text: str) -> bool:
    """Whether a text is an answer and nothing else: short, and with no sentence in it."""
    if len(text) > 300 or "\n\n" in text:
        return False
    words = _WORD.findall(_TEXT_COMMAND.sub(" ", _LABEL.sub("", text, count=1)))
    if any(_SENTENCE_WORD.fullmatch(word) for word in words):
        return False
    if len(text) <= 60 and not any(character.isdigit() for character in text):
        return True  # "no solution"
    few = 2 if len(text) < 25 or _MATH.search(text) is None else 1
    return sum(_PLAIN_MATH.fullmatch(word) is None for word in words) <= few


def _last(text: str) -> str | None:
    """The mathematics or the number that ends last in a text."""
    environments = list(_MATH.finditer(text))
    if environments:
        chain = [environments[-1]]
        while len(environments) > len(chain):
            previous = environments[-len(chain) - 1]
            if not _JOIN.fullmatch(text, previous.end(), chain[0].start()):
                break
            chain.insert(0, previous)
        last = chain[-1].end()
    else:
        last = 0
    numbers = list(_numbers(text, last))
    if numbers:
        begin, end = numbers[-1]
        return text[begin:end].strip()
    return _joined(text, chain[0]) if environments else None


def _numbers(text: str, begin: int = 0) -> Iterator[tuple[int, int]]:
    for found in _NUMBER.finditer(text, begin):
        if any(character.isdigit() for character in found.group()):
            yield found.span()
