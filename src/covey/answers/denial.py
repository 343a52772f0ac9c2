r"""Values that a text denies ("not 5", "(C) is wrong"), and alternatives ("or 6").

A denied value is replaced by `DENIED` before a text is read, so that it cannot be taken for the answer.
"""

from __future__ import annotations

import re
from collections import deque

DENIED = "\N{OBJECT REPLACEMENT CHARACTER}"

_LATEST = 20  # denials that are read, at the end
_WINDOW = 200  # characters before "is wrong" that can hold what is
_MAX_ALTERNATIVES = 20

MATH = re.compile(  # bounded, so that unclosed delimiters cost linear time
    r"\$\$(?P<double>[^$]{1,1000})\$\$|\$(?<!\\\$)(?P<single>(?:\\\$|[^$]){1,500}?)(?<!\\)\$"
    r"|\\\((?P<round>(?:[^\\]|\\[^()]){1,300}?)\\\)|\\\[(?P<square>(?:[^\\]|\\[^\[\]]){1,1000}?)\\\]"
)
_IN_BRACES = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\}){1,150}\}"
_BOXED = rf"\\(?:boxed|fbox) ?{_IN_BRACES}"
_NAKED = (
    rf"{_BOXED}|\([A-J]\)|[A-J](?![\w'(])|\\[a-z]*frac ?[^\s,;]{{2,60}}"
    r"|[-+]?\\?\$?[-+]?(?:\d|\.\d)(?:[\w.,/^{}\\+*-]{0,60}[\w}])?(?: ?\\?%)?"
)
_DOLLARS = r"\$(?!\s)[^$\n]{1,100}(?<!\s)\$(?!\d)|\\\([^()\n]{1,100}\\\)"
_VALUE = rf"(?:{_DOLLARS}|{_NAKED})"
_SMALL_WORDS = (
    r"(?: (?:be|equal|equals|to|necessarily|really|simply|just|the|an?|that|it|its|it's|is|value|number|option|choice"
    r"|letter|(?:(?:final|correct|right) )?answer))*"
)
_BEFORE = re.compile(
    r"(?i:\b(?:not|cannot|never|neither|nor|anything but|rul(?:e|es|ed|ing) out|(?:eliminat|exclud)(?:es?|ed|ing)"
    rf"|I (?:\w+ )?doubt|(?:wrong|incorrect) (?:answer|result|value|option|choice)(?= is\b))\b|n't\b)"
    rf"{_SMALL_WORDS}:?[\s*]*(?:<\w+> ?)?(?:\((?![A-J]\))\s*)?"
    rf"(?P<value>{_VALUE}(?:(?:,|,? (?:or|and|nor)) {_VALUE}(?! (?:is|are|works?|must)\b))*)"
    rf"|(?:\\neq?\b|(?<!-)\bnegative ) ?(?P<box>{_BOXED})"
)
_AFTER = re.compile(
    r"(?: (?:is|was)| (?P<are>are|were)| (?:can|could|must|should|would|will)(?: be)?)?(?:(?: not|n't)(?:"
    r" (?:be )?(?:\w+ ){0,2}?(?:correct|right|answer|true|valid|possible|acceptable|it)\b|(?=[.,;!]|$))"
    r"| cannot be (?:\w+ ){0,2}?(?:correct|right|answer|true|valid)\b)"
    r"| (?:does not|doesn't|did not|didn't) (?:work|fit|hold)\b| \((?:wrong|incorrect)\)"
    r"|(?: which| that)? (?:is|was|(?:can|must|should) be|(?P<are2>are|were)) (?:\w+ly |also )?"
    r"(?:wrong|incorrect|false|impossible|invalid|ruled out|eliminated|excluded|rejected)\b"
)
_NOT_BUT = re.compile(rf"\bnot {DENIED},? but (?:rather |instead )?")  # "not 6 but 5" states 5
_LAST_VALUE = re.compile(rf"(?<![\w.])(?P<value>{_VALUE}(?:(?:,|,? (?:or|and|nor)) {_VALUE})*)[\s*)$]*(?:</\w+>)?,?$")
_MARKS = (  # a text without any of these has no denials
    *("not", "n't", "never", "neither", "nor ", "anything but", "rul", "eliminat", "exclud", "doubt", "\\ne"),
    *("wrong", "incorrect", "false", "impossible", "invalid", "reject", "negative"),
)
_ALTERNATIVE = re.compile(
    r"[\s$*.,;()\]\\]{0,8}\b(?:or|maybe|perhaps|possibly|alternatively)\b,?"
    r"(?: (?:or|maybe|perhaps|possibly|else|alternatively|it is|is it|it's|also|even|just),?)*[\s*(]*(?:<\w{1,9}> ?)?"
    rf"(?P<value>{_VALUE})",
    re.IGNORECASE,
)
_POSSIBLE = re.compile(
    rf"(?i:\b(?:could|might|may) be|\b(?:maybe|perhaps|possibly))(?: (?:it is|it's))?[\s*]+(?P<value>{_VALUE})"
)
_NEGATIVE = re.compile(r"(?:(?<!-)\bnegative |(?:(?<=is )|(?<=be )|(?<=: )|^)minus )(\\?\$|\\\()?(?=\d)")


def without_denied(text: str) -> str:
    """The text with `DENIED` for each value that it denies, and "-5" for "negative 5"."""
    if "negative " in text or "minus " in text:
        text = _NEGATIVE.sub(lambda found: (found[1] or "") + "-", text)
    lower = text.lower()
    if not any(mark in lower for mark in _MARKS):
        return text
    for found in reversed(deque(_BEFORE.finditer(text), maxlen=_LATEST)):
        text = _replaced(text, *found.span("value" if found["value"] else "box"))
    for found in reversed(deque(_AFTER.finditer(text), maxlen=_LATEST)):
        begin = max(0, found.start() - _WINDOW)
        value = _LAST_VALUE.search(text[begin : found.start()])
        if value and (not (found["are"] or found["are2"]) or not any(c.isdigit() for c in value["value"])):
            text = _replaced(text, begin + value.start("value"), begin + value.end("value"))
    return _NOT_BUT.sub("", text)


def _replaced(text: str, begin: int, end: int) -> str:
    return text[:begin] + DENIED + text[end:]


def alternatives(text: str, begin: int) -> list[str]:
    """The values joined by "or", "maybe" and the like to one that ends at `begin`."""
    found: list[str] = []
    while len(found) < _MAX_ALTERNATIVES and (match := _ALTERNATIVE.match(text, begin)):
        found.append(_bare(match["value"]))
        begin = match.end()
    return found


def possibilities(sentence: str) -> str | None:
    """The values that a sentence calls possible ("could be"), as a list; None for fewer than two."""
    values = [_bare(found["value"]) for found in _POSSIBLE.finditer(sentence)]
    return ", ".join(values) if len(values) > 1 else None


def _bare(value: str) -> str:
    found = MATH.fullmatch(value)
    return next(content for content in found.groups() if content is not None) if found else value
