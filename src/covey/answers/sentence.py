"""The answer of a text in words, without tags and boxes, and what the text denies.

A denied value ("not 5", "(C) is wrong") is replaced by `DENIED` before a text is read, so that it cannot be taken for
the answer. A statement is explicit ("the answer is", "Answer:", "the correct option is", `####`). The last one counts,
unless it is corrected ("No, 6"). Without a statement the last sentence with a value is read. Alternatives ("5 or 6")
are kept together, and nothing is taken from a bound ("more than 5"). Every pattern is linear in the length of a text
with collapsed white space.
"""

from __future__ import annotations

import re
from collections import deque

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
    return _content(found) if found else value


_STATEMENT = 400  # characters after "the answer is" that can hold the answer
_MAX_JOINED = 64  # values of one list
_STATEMENTS = 5  # the last ones, which are read

_NOUN = r"(?:result|value|solution|option|choice|letter|statement|picture|figure|one)"
_ANCHOR = re.compile(
    rf"\b(?:answer\b(?! (?:choices|options|key|sheet)\b)|(?:final|correct|right|best|true) {_NOUN}\b)"
    r"[^.\n:=$\\]{0,60}?(?: (?:is|are|was|be|equals)\b ?:?| ?[:=])"
    r"|\banswer(?=\s?(?:\$|\\[(\[]|\n))"
    r"|\b(?:option|choice) ?(?:is\b ?:?|[:=])"
    r"|\b(?:it|this|that|which) should (?:actually |really |instead |rather )?be\b"
    r"|(?<!\#)\#{4}(?!\#)|^ans(?:wer)? ?[.-] |\u7b54\u6848[\u662f\u4e3a]?:?",
    re.IGNORECASE | re.MULTILINE,
)
_A = re.compile(r"^[Aa] ?:(?![^\n]*\n+\(?[Bb] ?[:.)])", re.MULTILINE)  # options, not an answer
_ANCHOR_WORDS = (
    "ans",
    "\u7b54\u6848",
    "option",
    "choice",
    "should",
    "final",
    "correct",
    "right",
    "best",
    "true",
    "####",
)
_CORRECTION = re.compile(
    r"(?:^|[.!?;,\n(-] ?)(?:(?:no|wait|actually|hmm+|sorry|oops|correction|or rather|rather|I mean|on second thought)\b"
    r"[\s,.:;!-]*)+(?:(?:it|that|this|the (?:final |correct )?answer)(?:'s| is| should be| must be) (?:actually )?)?",
    re.IGNORECASE,
)
PERCENT = re.compile(r"\s?(?:\\?%|percent\b|pct\b)")
_JOIN = re.compile(r"\s*(?:,?\s*(?:and|or)\b|,|;)\s*", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![\w.\\:])\d{1,2}:\d\d(?![\d:])(?: ?[ap]\.?m\b\.?)?|(?<![\w.\\])[-+]?\s?[$€£]?\s?"
    r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+(?!\d)|\d+)?(?:[.,]\d+|(?<=\d))(?:\s*/\s*\d+)?(?:\s*\\?%)?",
    re.ASCII,
)
_SENTENCE_END = re.compile(
    r"(?<!\\)[.?](?=\s|$)|(?<!\\)!(?=\s+[A-Z]|\s*$|\n)|\n|\bbecause\b|\bsince\b|,\s+(?:so|which|because|as|i\.e)\b"
)
_SENTENCES = re.compile(r"(?<=[.!?])(?<!\\!)\s+|\n+")
_IS = re.compile(r"\b(?:is|are|was|equals|equal to|be)\b|=", re.IGNORECASE)
_SENTENCE_WORD = re.compile(
    r"(?:is|are|was|were|the|this|that|these|therefore|thus|hence|so|we|you|it|they|ha(?:ve|s|d)|gets?|finds?|needs?"
    r"|because|since|there|then|which|must|let|but|not|will|can|would|should)",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(r"(?:as|above|below|clear|correct|right|wrong|obvious|in|to|found|given)\b", re.IGNORECASE)
_PLAIN_MATH = re.compile(r"and|or|sqrt|pi|sin|cos|tan|log|ln", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_PROSE = re.compile(r"(?:^|(?<=[\s(*,]))(?!(?:and|or|sqrt|pi|sin|cos|tan|log|ln)\b)[A-Za-z]{2,}", re.IGNORECASE)
_TEXT_COMMAND = re.compile(r"\\[a-zA-Z]+\s*\{[^{}]*\}|\\[a-zA-Z]+")
_LEAD = re.compile(  # what may come between "the answer is" and the answer
    r"(?:[\s:=>*\u2192\u21d2'\"`]|\\(?=[\"'])|(?:yes|ok|okay),|(?:given by|as follows|therefore|thus|hence|then|so"
    r"|simply|just|indeed|clearly|equal to|exactly|roughly|either"
    rf"|(?:the )?(?:{_NOUN}|number)(?= ?[(\d$\\]| [A-J]\b))\b,?)*",
    re.IGNORECASE,
)
_LABEL = re.compile(r"[^\W\d_](?:[^\W\d_]| ){2,30}:\s+(?=\S)")
_VALUE_SIGN = re.compile(r"\d|\\[a-zA-Z(\[]|\$")
_OPERATOR = re.compile(r"[-+*/^=<>]")
_OR = re.compile(r"\bor\b(?: (?:more|less|fewer)\b|[^.\n]{0,40}?(?:\d|\\[a-zA-Z]|\([A-J]\)))")
_CHANGED = re.compile(  # "18 point five", "18 in hex", "18 degrees below zero", "18 half dozen"
    r"\W*(?:(?:degrees|in|at|too|half) )?(?:point|base|binary|octal|hex|shy|short of|to the|or so|below|above|least"
    r"|most|few|many|halved|doubled|tripled|squared|cubed|half|(?:ten|hundred|thousand)ths|dozen|times \d|negative)\b"
)
_PLAN = re.compile(r"(?:Now,? )?(?:let me|let us|let's)\b(?! know)", re.IGNORECASE)
_OR_BETWEEN = re.compile(r"[^.\n]{0,30}(?:\. )?\bor\b[^.\n]{0,20}", re.IGNORECASE)
_OR_ELSE = re.compile(r"(?<=[\w)$}])[.!?] (?:Or|Maybe|Perhaps)\b")
_ASIDE = re.compile(  # `5 (five)`, but not `5 (or 6)` and `2 (3x - 5)`
    r"([-+$]?[\d.,]*\d)\s\((?=[^()\\]*[a-zA-Z]{3})(?![^()]*\b(?:or|not|maybe|perhaps|possibly)\b)[^()]*\)"
)
_DENIAL = re.compile(
    r"(?:\b(?:not|never|neither|nor|than|least|most|one of|any of)|n't|\\neq?)(?:\W+(?!is\b)[a-z]+){0,3}\W*$"
    r"|\bbetween\b[^.\n]*$",
    re.IGNORECASE,
)
_CHOICE = re.compile(r"\(?([A-J])\)?[.:)]?")
_CHOSEN = re.compile(
    r"(?i:(?:\b(?:it|that)'s|\b(?:is|be|choose|select|pick|therefore|thus|hence|so|option|choice|answer|letter|picture|figure)))\b[:,]?"
    r" ?\(?([A-J])\)?$"
)
_OPTION = re.compile(r"(?i:option|choice) \(?([A-J])\)?, \\?\$?\d[^()]*")  # followed by the value of the choice
_SUBJECT = re.compile(  # a short sentence that ends on its value: `He made $5`, `She earns 12 * $6 = $72.`
    r"[A-Z][a-z]+(?: [a-z]{2,}){1,3}:?(?: [\d\s.,$+*/x()-]{1,80}=)? (\\?\$?(?:\d[\d,]*)?\.?\d+)[.!]?"
)
_GET = re.compile(r"\b(?:gets?|obtain|have|find|gives?|yields?)\b(?= \$?\d)")
_CALLED_RIGHT = re.compile(
    r"(?:(?:^|\W)([A-J])|\(([A-Ja-j])\)) (?:is|must be|would be) (?:the |also )?"
    r"(?:correct|right|best|true|answer|final|only)\b"
)
_LETTERS = re.compile(r"(?<![\w)\\}'])\(([A-J])\)")
_CODE = re.compile(
    r"__[a-z]+__ ?[(.'\"\[]|\.__[a-z]+__|[(=,] ?lambda\b[\w ,=*]{0,60}:|\((?<=\w\() ?['\"]"
    r"|\.(?<=[A-Za-z_]\.)[A-Za-z_]\w*\("
)
_PROGRAM = re.compile(
    r"^(?:(?:from [\w.]+ )?import [\w.]+(?: as \w+)?|(?:def \w+ ?\(.*|class \w+.*):.*)$", re.MULTILINE
)
_KEYWORDS = ("import ", "def ", "class ")  # of programs
_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|$)", re.DOTALL)


def stated(text: str, *, entire: bool = False, tagged: bool = False) -> str | None:
    """The answer that a text states explicitly; None without one.

    Args:
        text: the text, with collapsed white space.
        entire: the statement must be a whole sentence, as is required after a box.
        tagged: the text is the content of an answer tag: words that are not a value are kept.
    """
    value, begin = None, 0
    for anchor in _anchors(text):
        begin = anchor.end()
        value = _at(text[begin : begin + _STATEMENT], entire or anchor.group() == "####")
        if value is not None and not _states_value(value):
            words = value.split()
            kept = not _NO_ANSWER.match(value) and not (tagged and len(words) > 1)
            value = value if kept and not _VALUE_SIGN.search(text, begin + len(value)) else None
        if value is not None:
            break
    if value is None and not entire:
        return None
    if value and (other := _OR_ELSE.search(text[begin : begin + _STATEMENT])):
        value = ", ".join([value, *alternatives(text, begin + other.start())])
    for found in deque(_CORRECTION.finditer(text, begin if value else 0), maxlen=_STATEMENTS):
        value = _at(text[found.end() : found.end() + _STATEMENT], True) or value
    return value


def _anchors(text: str) -> list[re.Match[str]]:
    """The last phrases that announce an answer, in reverse order. Looking for a word first is much faster."""
    lower = text.lower()
    found = deque(_A.finditer(text) if "a:" in lower or "a :" in lower else (), maxlen=_STATEMENTS)
    if any(word in lower for word in _ANCHOR_WORDS):
        found.extend(deque(_ANCHOR.finditer(text), maxlen=_STATEMENTS))
    return sorted(found, key=re.Match.end, reverse=True)


def guessed(text: str, *, tagged: bool = False) -> str | None:
    """The answer of a text without a statement: all of a bare one, or the value in its last sentence that has one."""
    text = _without_code(text)
    if not text:
        return None
    if _is_bare(text) or (tagged and "\n" not in text and not _PROSE.search(_TEXT_COMMAND.sub("", text))):
        if choice := _CHOSEN.search(text.rstrip(".!")) or _OPTION.fullmatch(text):
            return choice[1]
        if (paid := _SUBJECT.fullmatch(text)) and not _is_denied(text, paid.start(1)):
            return paid[1]
        if _GET.search(text) and (value := _predicate(text)):
            return value
        label = _LABEL.match(text)
        lead = _LEAD.match(text)
        text = text[lead.end() :] if lead and _VALUE_SIGN.match(text, lead.end()) else text
        return text if label is None else _at(text[label.end() :])
    sentences = [part for part in _SENTENCES.split(text[-_STATEMENT:]) if part.strip()]
    if sentences and _PLAN.match(sentences[-1]) and not _IS.search(sentences[-1]):
        return None
    for sentence in reversed(sentences):
        if value := possibilities(sentence) or _predicate(sentence) or _chosen(sentence):
            return value
        if _VALUE_SIGN.search(sentence) or DENIED in sentence:
            break
    return _last(text) or (_words(sentences[-1], 1 if tagged else 3) if sentences else None)


def _at(rest: str, entire: bool = False) -> str | None:
    """The answer at the beginning of what follows "the answer is"; with `entire` only if nothing else follows."""
    if lead := _LEAD.match(rest):
        rest = rest[lead.end() :]
    first = MATH.match(rest)
    opened, closed = rest.find(r"\begin{"), rest.rfind(r"\end{")
    begin = first.end() if first else closed if opened >= 0 and "\n" not in rest[:opened] else 0
    end = _SENTENCE_END.search(rest, max(0, begin))
    sentence = (rest[: end.start()] if end else rest).strip().rstrip(",;*")
    if not sentence:
        return None
    if first:
        if entire and not _is_bare(sentence[first.end() :]):
            return None
        value, after = _joined(rest, first)
        if others := alternatives(rest, after):
            return ", ".join([value, *others])
        return sentence if _OR.match(rest[after:].lstrip(" ,")) else value
    if aside := _ASIDE.fullmatch(sentence):
        return aside[1]
    if _is_bare(sentence):
        return sentence if not entire or _states_value(sentence) else None
    return None if entire else _within(sentence)


def _within(sentence: str) -> str | None:
    """The value that a sentence begins with, or that its last "is" gives, or its last; all of it if it is a denial."""
    if value := _beginning(sentence):
        return value
    for found in deque(_IS.finditer(sentence), maxlen=1):
        value = sentence[found.end() :].strip()
        if _is_denied(sentence, found.end()):
            return sentence
        if environment := MATH.match(value):
            return _joined(value, environment)[0]
        if value and _is_bare(value):
            return value
    return _last(sentence) or (sentence if _VALUE_SIGN.search(sentence) else None)


def _beginning(sentence: str) -> str | None:
    """The text before a sentence's first word: `12` of "12 in all"; all of "12 or perhaps 13", which is a choice."""
    word = _PROSE.search(_TEXT_COMMAND.sub(lambda found: "\\" * len(found.group()), sentence))
    value = re.sub(r"(?:[\s,;:(*-]|\b(?:and|or)$)+$", "", sentence[: word.start()] if word else sentence)
    if not _VALUE_SIGN.search(value) and not _CHOICE.fullmatch(value):
        return None
    return sentence if _OR.search(sentence, len(value)) or _CHANGED.match(sentence, len(value)) else value


def _states_value(text: str) -> bool:
    """Whether a bare text is a value and not words: a number, letter or sign comes before its first word."""
    word = _PROSE.search(_TEXT_COMMAND.sub(lambda found: "\\" * len(found.group()), text))
    before = (text[: word.start()] if word else text).strip()
    return any(c.isalnum() or c == "\\" for c in before) and before != "a"


def _predicate(sentence: str) -> str | None:
    """The value after the "is" of a sentence."""
    spans = [found.span() for found in MATH.finditer(sentence)]
    ends = [
        (found.end(), found.group() == "=")
        for found in _IS.finditer(sentence)
        if not any(begin <= found.start() < end for begin, end in spans)
    ]
    words = [end for end, is_sign in ends if not is_sign]
    ends, words = ends[-1:], words[-1:]
    if ends and ends[0][1] and (got := _GET.search(sentence, ends[0][0])):  # "with x = 3 we get 72"
        ends = [(got.end(), False)]
    for end in dict.fromkeys([end for end, _ in ends] + words):
        if value := _value_after(sentence, end):
            return value
    return None


def _value_after(sentence: str, begin: int) -> str | None:
    value = sentence[begin:].strip(" *").rstrip(".!*")
    if (
        _is_denied(sentence, begin)
        or MATH.search(value)
        or value.replace(r"\$", "").count("$") % 2
        or re.search(r"\\[)\]]", value)
    ):
        return None
    if lead := _LEAD.match(value):
        value = value[lead.end() :]
    if aside := _ASIDE.fullmatch(value):
        return aside[1]
    if _CHOICE.fullmatch(value) or (_OPERATOR.search(value) and _states_value(value) and _is_bare(value)):
        return value
    if not _VALUE_SIGN.search(value):
        return None
    return value if _is_bare(value) else _beginning(value)


def _chosen(sentence: str) -> str | None:
    """The letter of the choice in a sentence ("Therefore, (D)"); all of them where it names several."""
    sentence = sentence.strip(" *.!")
    if found := _CALLED_RIGHT.search(sentence) or _CHOSEN.search(sentence):
        return str(found[found.lastindex or 0]).upper()
    letters = dict.fromkeys(found[1] for found in _LETTERS.finditer(sentence))
    return ", ".join(letters) or None


def _words(sentence: str, most: int) -> str | None:
    """The few words after the "is" of a sentence, where they are not a value."""
    value = _IS.split(sentence)[-1].strip(" *.!")
    if DENIED in sentence:
        return None
    return value if 0 < len(value) < len(sentence) and len(value.split()) <= most and _is_bare(value) else None


def _joined(text: str, first: re.Match[str]) -> tuple[str, int]:
    """The content of an environment and of those joined to it by "and", "or" or a comma, and where they end."""
    contents, end = [_content(first).strip()], first.end()
    while (join := _JOIN.match(text, end)) and (following := MATH.match(text, join.end())):
        contents.append(_content(following).strip())
        end = following.end()
    percent = PERCENT.match(text, end)
    return ", ".join(contents) + (r"\%" if percent else ""), end


def _content(found: re.Match[str]) -> str:
    return next(value for value in found.groups() if value is not None)


def _is_bare(text: str) -> bool:
    """Whether a text is just an answer: short, and without a sentence in it."""
    if len(text) > 300 or "\n\n" in text:
        return False
    words = _WORD.findall(_TEXT_COMMAND.sub(" ", _LABEL.sub("", text, count=1)))
    if any(_SENTENCE_WORD.fullmatch(word) for word in words):
        return False
    if len(text) <= 60 and not any(character.isdigit() for character in text):
        return True  # "no solution"
    few = 2 if len(text) < 25 or MATH.search(text) is None else 1
    return sum(_PLAIN_MATH.fullmatch(word) is None for word in words) <= few


def _last(text: str) -> str | None:
    """The last mathematics or number in a text, with those that "or" joins to it; None if denied."""
    environments = deque(MATH.finditer(text), maxlen=_MAX_JOINED)
    chain = [environments.pop()] if environments else []
    while environments and _JOIN.fullmatch(text, environments[-1].end(), chain[0].start()):
        chain.insert(0, environments.pop())
    found = _NUMBER.finditer(text, chain[-1].end() if chain else 0)
    spans = deque((one.span() for one in found if any(map(str.isdigit, one.group()))), maxlen=_MAX_JOINED)
    if not spans:
        if not chain or DENIED in text[chain[-1].end() :] or _is_denied(text, chain[0].start()):
            return None
        return _joined(text, chain[0])[0]
    numbers = [spans.pop()]
    while spans:
        between = text[spans[-1][1] : numbers[0][0]]
        if not _OR_BETWEEN.fullmatch(between) and (len(numbers) == 1 or between.strip() != ","):
            break
        numbers.insert(0, spans.pop())
    values = [text[begin:end].strip() for begin, end in numbers]
    denied = DENIED in text[numbers[-1][1] :] or _is_denied(text, numbers[0][0])
    return None if denied or _CHANGED.match(text, numbers[-1][1]) else ", ".join(values)


def _is_denied(text: str, position: int) -> bool:
    return _DENIAL.search(text[max(0, position - 40) : position].rpartition(DENIED)[2]) is not None


def _without_code(text: str) -> str:
    """The text without fenced code (if there is other text) and lines of code; empty for a program."""
    if "```" in text:
        text = _FENCED.sub("", text).strip() or _FENCED.sub(r"\1", text)
    if any(word in text for word in _KEYWORDS) and _PROGRAM.search(text):
        return ""
    if not _CODE.search(text):
        return text
    return "\n".join(line for line in text.split("\n") if not _CODE.search(line)).strip()
