r"""Finding the answer in a completion.

Only what follows `</think>` is read; thinking that is never closed states no answer. Of that, the content of the last
`<answer>…</answer>` is read, or else all of it, in this order: the last `\boxed{…}` (adjacent ones are a list), unless
a later sentence states another answer; the last statement in words or after `####` (see `covey.answers.sentence`); the
whole text if it is a bare answer; the value in its last sentence.
"""

from __future__ import annotations

import re
from collections import deque

from covey.answers.extract import TAGS, Tags, extract_answer_tag, extract_boxed, extract_gsm8k
from covey.answers.maths.notation import unicode_to_latex
from covey.answers.sentence import PERCENT, alternatives, guessed, stated, without_denied

_MAX_LENGTH = 100_000  # characters of a completion that are read, at its end
_MAX_JOINED = 20  # boxes or tags that make one list

_BOX = re.compile(r"\\(?:(?:begin)?boxed|fbox)\s*\{")
_BOX_OR_BRACE = re.compile(rf"(?P<box>\\?{_BOX.pattern})|\\.|[{{}}]", re.DOTALL)
_BARE_BOX = re.compile(r"\\boxed\s*(-?[\w.]+)")
_LATEX_NOISE = re.compile(r"\\(?:quad|qquad|text\w*|mbox|[,;:! ()\[\]])|[${}\\*]")
_NOT_READ = re.compile(  # what follows the end of a turn, unless it closes a box or tag; a calculator's annotation
    r"<(?:(?:\|[^|<>]{1,40}\||/s|eos|end_of_turn)>(?:\s|<\|[^|<>]{1,40}\|>)*(?:(?=\\?[})\]$]|</)|.*)|<[^<>\n]*>>)",
    re.DOTALL,
)
_BLANKS = (  # substrings of which one must occur, the pattern, and its replacement
    (("  ", "\t", "\r", "\v", "\f"), re.compile(r"[^\S\n]{2,}|[^\S\n ]"), " "),
    ((" \n", "\n "), re.compile(r" \n ?|\n "), "\n"),
    (("\n\n\n",), re.compile(r"\n{3,}"), "\n\n"),
)
_EMPHASIS = (  # Markdown, with the substring that each needs: `**5**` and `*5*` are 5, `2**3` and `2*3*4` are products
    ("**", re.compile(r"(?<![\w)\]}*\\])\*\*\*?(?=[^\s*])((?:[^*\n]|\*(?!\*))*)\*\*\*?(?![\w*])")),
    ("*", re.compile(r"(?<![\w)\]}*\\])\*(?=[^\s*])([^*\n]*)\*(?![\w*])")),
    ("`", re.compile(r"(?<!`)`([^`\n]+)`(?!`)")),
    ("__", re.compile(r"(?<!\w)__(?=[^_\n]*[\d ])(?=[^\s_])([^_\n]*)__(?!\w)")),
)
_SYMBOLS = re.compile(  # marks at the end of a proof or an answer
    r"[\u220e\u25a0\u25a1\u25aa\u25fb\u25fc\u2705\u2713\u2714\ufe0f\U0001f300-\U0001faff]{1,8}(?=\s{0,3}(?:$|[\n<]))"
)
_ARROW = re.compile(r"^([A-Za-z]\w{0,20} ?)[\u2192\u21d2\u27f9\u2014] ?(?=[\w$\\-])", re.MULTILINE)
_THEREFORE = re.compile(r"(^|[$>]) ?\\therefore\b ?", re.MULTILINE)
_FINALLY = re.compile(r"^(?:Finally|Lastly|Overall|Altogether|In total), (?=[a-zA-Z] ?[-+=])")
_WHICH_IS = re.compile(r"[\s$.]*,? ?(?:which|that) is (?:the )?(?:(?:option|choice|answer) )?\(([A-J])\)[\s.]*")
_ARITHMETIC = re.compile(r"(?=.*[\d)}] ?(?:[-+*/]|\\(?:times|cdot|div)))(?:[\d\s.,$()+*/-]|\\(?:times|cdot|div|\$))+")
_EQUALS = re.compile(  # "92 + 88, which equals 180." states the number too
    r"[\s})\]$,]{0,6}(?:=|(?:which|that) (?:is|equals|makes|gives|comes to)) ?(\$?[-+]?\d[\d,]*(?:\.\d+)?)"
    r"(?=[\s$)\]]*(?:[.!;,]|$|\n|</))"
)
_ALTERNATIVELY = frozenset(("or", "maybe", "perhaps", "possibly", "else", "also", "vs", "versus"))
_JOINED = re.compile(r"\s*(?:,|;|,?\s*(?:and|or)\b)\s*", re.IGNORECASE)


def extract_prediction(completion: str, tags: Tags = TAGS) -> str | None:
    """The answer that a completion states, as text; None when it states none.

    The module's docstring has the order of the search. Linear in the length of the completion, of which only the last
    100,000 characters are read.
    """
    text = after_thinking(completion, tags)
    if text is None:
        return None
    text = without_denied(_plain(text[-_MAX_LENGTH:]))
    inside = _tagged(text, tags.answer)
    if inside is not None:
        found: str | None = _read(inside, tagged=True) or inside
    else:
        found = _read(text, cut_off=f"<{tags.answer}>" in text.rpartition(f"</{tags.answer}>")[2])
    if found and _ARITHMETIC.fullmatch(found) and (begin := text.rfind(found)) >= 0:
        equal = _EQUALS.match(text, begin + len(found))
        return f"{found} = {equal[1]}" if equal else found
    return found


def after_thinking(text: str, tags: Tags) -> str | None:
    """What follows the last `</think>`, or all of a text without thinking; None if thinking is not closed."""
    opening, closing = f"<{tags.think}>", f"</{tags.think}>"
    before, mark, after = text.rpartition(closing)
    if mark and opening not in after:
        return after if after.strip() else None
    if opening in after:
        return None
    return before + mark + after


def final_answer(text: str, tags: Tags = TAGS) -> str | None:
    r"""The content of the last `<answer>…</answer>` after the thinking, or else of the last `\boxed{…}` there."""
    after = after_thinking(text, tags) or ""
    return extract_answer_tag(after, tags.answer) or extract_boxed(after)


def marked(text: str) -> str | None:
    r"""The answer in the last boxes, or after the last `####`, of a text without tags."""
    found = _boxed(text)
    return found[0] if found else extract_gsm8k(text.rstrip())


def _plain(text: str) -> str:
    """The text without formatting: runs of white space, Markdown's emphasis, end marks, characters beyond ASCII."""
    if not text.isascii():
        text = _ARROW.sub(r"\1= ", _SYMBOLS.sub("", text.replace("\N{THEREFORE}", r"\therefore ")))
    text = unicode_to_latex(text)[-_MAX_LENGTH:]
    for marks, pattern, blank in _BLANKS:
        if any(mark in text for mark in marks):
            text = pattern.sub(blank, text)
    if "<" in text:
        text = _NOT_READ.sub("", text)
    text = re.sub(r"I hope (?:it|this) is correct.*", "", text, flags=re.DOTALL)
    for mark, pattern in _EMPHASIS:
        if mark in text:
            text = pattern.sub(r"\1", text)
    text = text.strip()
    if "\\therefore" in text:
        text = _THEREFORE.sub(r"\1", text)
    return _FINALLY.sub("", text) if len(text) <= 200 else text


def _tagged(text: str, tag: str) -> str | None:
    """The content of the last answer tag, or a list of the last few that "or", "and" or a comma joins."""
    closing = f"</{tag}>"
    found: list[str] = []
    others = alternatives(text, text.rfind(closing) + len(closing)) if closing in text else []
    others = [other for other in others if not other.startswith(("\\boxed", "\\fbox"))]
    while (inside := extract_answer_tag(text, tag)) is not None and len(found) < _MAX_JOINED:
        found.insert(0, inside)
        text = text[: text.rfind(f"<{tag}>", 0, text.rfind(closing))]
        before, mark, between = text.rpartition(closing)
        if not mark or not _JOINED.fullmatch(between):
            break
        text = before + mark
    return ", ".join(found + others) or None


def _read(text: str, *, tagged: bool = False, cut_off: bool = False) -> str | None:
    """The answer that a text without thinking and tags states.

    Args:
        tagged: the text is the content of an answer tag.
        cut_off: an answer tag is opened and not closed, so nothing is guessed from the end.
    """
    box = _boxed(text)
    if box is not None:
        if choice := _WHICH_IS.fullmatch(text, box[1]):
            return choice[1]
        return stated(text[box[1] :], entire=True) or box[0]
    start = text.rfind(r"\boxed{")
    if start >= 0:  # a box that never closes
        text, cut_off = text[:start], True
    return stated(text, tagged=tagged) or (None if cut_off else guessed(text, tagged=tagged))


def _boxed(text: str) -> tuple[str, int] | None:
    """The content of the last box, or of the last few adjacent ones, and where it ends."""
    found = _closed_boxes(text)
    if not found:
        bare = deque(_BARE_BOX.finditer(text), maxlen=1)
        return (bare[0][1], bare[0].end()) if bare else None
    joined = [found[-1]]
    for box in reversed(found[:-1]):
        if len(joined) == _MAX_JOINED or not _adjacent(text[box[1] + 1 : joined[0][0]]):
            break
        joined.insert(0, box)
    contents = [text[text.index("{", begin) + 1 : end].strip() for begin, end in joined]
    content = ", ".join(dict.fromkeys(content for content in contents if content))
    end = joined[-1][1] + 1
    if content and (percent := PERCENT.match(text, end)):
        content, end = content + r"\%", percent.end()
    content = ", ".join([content, *alternatives(text, end)]) if content else content
    return (content, end) if content else None


def _closed_boxes(text: str) -> list[tuple[int, int]]:
    """(start, closing brace) of the closed boxes that hold no other, in order; one pass over the braces."""
    if _BOX.search(text) is None:
        return []
    opened: list[int | None] = []  # for each open brace, where its box starts; None: not a box
    found: list[tuple[int, int]] = []
    for mark in _BOX_OR_BRACE.finditer(text):
        if mark["box"] is not None:
            opened.append(mark.start())
        elif mark.group() == "{":
            opened.append(None)
        elif mark.group() == "}" and opened:
            start = opened.pop()
            if start is not None and not (found and found[-1][0] > start):
                found.append((start, mark.start()))
    return found


def _adjacent(between: str) -> bool:
    if len(between) > 60 or "\n\n" in between:
        return False
    plain = _LATEX_NOISE.sub(" ", between.replace("vs.", "vs"))
    words = re.findall(r"[A-Za-z]+", plain)
    if re.search(r"[.?!=]", plain):
        return False
    return not words or words[-1].lower() in ("and", "or") or all(word.lower() in _ALTERNATIVELY for word in words)
