r"""Values that a text denies ("not 5", "(C) is wrong"), and alternatives ("or 6").

A denied value is replaced by `DENIED` before a text is read, so that it cannot be taken for the answer.
"""

from __future__ import annotations

import re

DENIED = "\N{OBJECT REPLACEMENT CHARACTER}"

_LATEST = 200  # marks that are read, at the end
_WINDOW = 120  # characters before "wrong" that can hold what is
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
_LISTED = rf"{_VALUE}(?:(?:,|,? (?:or|and|nor)) {_VALUE}"
_SMALL_WORDS = (
    r"(?: (?:be(?:ing)?|equals?|to|as|for|if|of|necessarily|really|simply|just|possibly|ever|the|an?|that|it|its|it's"
    r"|[Ixyn]|you|we|said|is|was|were|value|number|option|choice|letter|result|solution|idea|claim"
    r"|(?:(?:final|correct|right) )?answer|say(?:ing)?|claiming|think(?:ing)?|believe|conclud(?:e|ing)|answering|write"
    r"|assum(?:e|ing)|suppose|guess(?:ing)?|choose|pick"
    r"|(?:true|correct|right|possible|likely|the case)(?= (?:that|to)\b)))*"
)
_STATED = rf"{_SMALL_WORDS}:?[\s*]*(?:<\w+> ?)?(?:\((?![A-J]\))\s*)?(?P<value>{_LISTED}(?! (?:is|are|works?|must)\b))*)"
_BEFORE = re.compile(  # begins with a mark
    r"(?i:n't\b|(?P<not>\b(?:not|never|neither|nor)|(?<=\bcan)not)\b|(?P<but>thing but|\b(?:except|other than))\b"
    r"|\b(?:rul(?:e|es|ed|ing) out|(?:reject|discard|dismiss|discount|disprove?|refute?|exclude?|eliminate?|avoid"
    r"|refuse?|deny|doubt)(?:e?s|e?d|ing|ful)?|denie[sd]|far from|nowhere near|nothing like|differ(?:s|ent) from"
    r"|no (?:means|way)|hardly|instead of|rather than|(?:wrong|incorrect|unlikely|improbable|impossible|false|untrue"
    r"|absurd|silly|foolish|mistake|error)(?= (?:to|that|if)\b)"
    r"|(?:wrong|incorrect) (?:answer|result|value|option|choice))\b)"
    rf"{_STATED}|(?:\\neq?\b|(?<!-)\bnegative |\b(?:(?<!other )than|least|most) [\s$]*) ?(?P<box>{_BOXED})"
)
_CANCELLED = re.compile(  # "no doubt it is 5", "cannot be anything but 5"
    r"(?i:\b(?:no|not|none|nothing|never|cannot|without|beyond|remov\w+|hardly|nobody|nor)\b|n't\b)[^.,;:!?\n]*$"
)
_FRAME = re.compile(  # what someone might think, once said, or supposes, and takes back; it ends before a mark
    r"(?i:\b(?:if|had|suppose|assum(?:e|ing)|imagine|might|may|could|would|will|tempt(?:ed|ing)|first|initially|naively"
    r"|naive|students|people|some|many|I|common|obvious)\b(?: \w+){0,2}? (?:was|were|think|thought|say|said|guess"
    r"|guessed|answer(?:ed)?|expect|believed?|conclude|accept|take|try|got|chose|is)"
    rf"|\b(?:looks|seems|appears)(?: like)?)\b{_STATED}"
    r"(?i:(?=[^.!?\n\d]{0,80}\b(?:wrong|mistaken|false|incorrect|contradict|impossible|absurd|error"
    r"|(?:but|however|yet)\b[^.!?\n\d]{1,40}(?:fail|\bnot|n't))))"
)
_WRONG = (
    r"(?:wrong|incorrect|false|impossible|invalid|inconsistent|mistaken|untrue|unlikely|improbable|absurd|nonsense"
    r"|refuted|dismissed|disproved|discarded|ruled out|eliminated|excluded|rejected|out of the question"
    r"|far from (?:right|correct)|(?:an )?extraneous"
    r"|too (?:large|small|big|high|low|many|few|much)|an? (?:\w+ ){0,2}(?:mistake|error|trap)"
    r"|(?:an?|the) (?:\w+ ){0,2}(?:wrong|incorrect|mistaken|false) \w+)\b(?! (?:to|that|for|about|if)\b)"
)
_FAILS = (
    r"(?:(?:does not|doesn't|did not|didn't) (?:work|fit|hold|satisfy|match|check)|(?:fail|contradict|violate)s?"
    r"|(?:leads?|led) to an? (?:contradiction|absurdity))\b"
)
_AFTER = re.compile(  # has a mark
    rf"(?<![\w.])(?P<value>{_LISTED})*)[\s*)$]*(?:</\w+>)?,?(?:"
    r"(?i:(?: \w+){0,4}\?[\"')\s]*(?:(?:certainly|of course|definitely|absolutely|surely|probably|well|oh),? )?"
    r"(?:no(?! (?:doubt|problem|question|other|one|need))|nope|not|never|wrong|incorrect|impossible|false|hardly"
    r"|I don't think so|I doubt it|(?:it|that|this) (?:is|was)(?: not|n't))\b"
    r"|(?:[:!]| ?[-\u2014]) ?(?:wrong|incorrect)\b|\W{1,4}not(?=[.!]|$)"
    r"|[.,;:!]?[ \n]{1,2}(?:- )?(?:(?:but|however|and|yet|no|though),? )*(?:that|this|it|which|you|I|we|they|one)"
    rf"(?:(?: ?'s|'re| is| was| were| are| am| would be| must be) (?:\w+ly |also )?{_WRONG}| {_FAILS}))"
    r"|(?: (?:is|was)|(?<![\d}$]) (?:are|were)| (?:can|could|must|should|would|will)(?: be)?)?(?:(?: not|n't)(?:"
    r" (?:be )?(?:\w+ ){0,2}?(?:correct|right|answer|true|valid|possible|acceptable|it|close|what"
    r"|solution)\b|(?=[.,;!]|$))"
    rf"| can(?:not|'t) be (?:\w+ ){{0,2}}?(?:correct|right|answer|true|valid)\b)| {_FAILS}| \((?:wrong|incorrect)\)"
    r"|(?: which| that)? (?:is|was|would be|turns out to be|has been|(?:can|must|should|has to) be"
    rf"|(?<![\d}}$] )(?:are|were)) (?:\w+ly |also )?{_WRONG}"
    r"| was (?:my|our|the) (?:first|initial|original|earlier) (?:guess|answer|thought)\b)"
)
_MARK_WORDS = (  # without one of these a text denies nothing
    r"n't|not|\ne|never|neither|nor |except|other than|thing but|negative |no way|no means|hardly|instead of|too |? "
    "|rather than|nothing like|nowhere|far from|differ|reject|rul|discard|discount|dismiss|disprov|refu|exclud|avoid"
    "|eliminat|fail|deny|denie|doubt|wrong|incorrect|unlikely|improbable|impossible|false|untrue|absurd|mistake|error"
    "|silly|foolish|trap|question|extraneous|than |least |most |inconsistent|contradict|violate|nonsense|invalid"
)
_MARKS = {mark: re.compile(re.escape(mark)) for mark in _MARK_WORDS.split("|")}
_NO = re.compile(r"(?:\W|</\w+>)*\?\s*No\b")
_OTHER = re.compile(r"(?i:thing but|except|other than)\W*(?:<\w+>)?$")
_NOT_BUT = re.compile(rf"\bnot {DENIED},? but (?:rather |instead )?")  # "not 6 but 5" states 5
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
    marks = (found for mark, found in _MARKS.items() if mark in lower)
    places = sorted(at.start() for mark in marks for at in mark.finditer(lower))[-_LATEST:]
    found: list[re.Match[str]] = []
    for match in filter(None, (_BEFORE.match(text, place) for place in places)):
        plain = match["box"] or match["not"] or match.group().startswith("n't")
        asked = match["but"] and _NO.match(text, match.end())
        if plain or not (asked or _CANCELLED.search(text[max(0, match.start() - 60) : match.start()])):
            found.append(match)
    for begin, end in ((max(0, place - _WINDOW), place + 60) for place in places):
        found += _FRAME.finditer(text, begin, end)
        for match in _AFTER.finditer(text, begin, end):
            if not _OTHER.search(text, max(0, match.start() - 40), match.start()):
                found.append(match)
    spans = {match.span("value" if match["value"] else "box") for match in found}
    for begin, end in sorted(spans, reverse=True):
        text = text[:begin] + DENIED + text[end:]
    return _NOT_BUT.sub("", text)


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
