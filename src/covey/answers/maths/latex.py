r"""Normalising LaTeX, Unicode, Markdown and plain text before answers are compared.

Nothing here changes the meaning of a text: `\dfrac12`, `\left(`, `\,`, `×` and `$…$` are normalised; units, percent
signs and brackets are kept.
"""

from __future__ import annotations

import re
from functools import lru_cache
from unicodedata import category, decimal, decomposition, name, normalize

from covey.answers.extract import closing_brace

MAX_LENGTH = 4_000  # a longer answer is compared as text
_MAX_COMMANDS = 100
UNIT_SYMBOLS = "mgshlLNJWVK"  # units of a single letter

_SIGNS = {
    "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{HYPHEN}": "-", "\N{NON-BREAKING HYPHEN}": "-",
    "\N{MULTIPLICATION SIGN}": r"\times ", "\N{DOT OPERATOR}": r"\cdot ", "\N{BULLET OPERATOR}": r"\cdot ",
    "\N{MIDDLE DOT}": r"\cdot ", "\N{ASTERISK OPERATOR}": "*", "\N{DIVISION SIGN}": "/", "\N{DIVISION SLASH}": "/",
    "\N{FRACTION SLASH}": "/", "\N{RATIO}": ":", "\N{SQUARE ROOT}": r"\sqrt ", "\N{INFINITY}": r"\infty ",
    "\N{DEGREE SIGN}": r"^\circ ", "\N{MASCULINE ORDINAL INDICATOR}": r"^\circ ", "\N{IDENTICAL TO}": r"\equiv ",
    "\N{LESS-THAN OR EQUAL TO}": r"\le ", "\N{GREATER-THAN OR EQUAL TO}": r"\ge ", "\N{NOT EQUAL TO}": r"\ne ",
    "\N{ALMOST EQUAL TO}": r"\approx ", "\N{ELEMENT OF}": r"\in ", "\N{UNION}": r"\cup ", "\N{INTERSECTION}": r"\cap ",
    "\N{EMPTY SET}": r"\emptyset ", "\N{PLUS-MINUS SIGN}": r"\pm ", "\N{MINUS-OR-PLUS SIGN}": r"\mp ",
    "\N{MATHEMATICAL LEFT ANGLE BRACKET}": r"\langle ", "\N{MATHEMATICAL RIGHT ANGLE BRACKET}": r"\rangle ",
    "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}", "\N{RIGHT SINGLE QUOTATION MARK}": "'", "\N{PRIME}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"', "\N{RIGHT DOUBLE QUOTATION MARK}": '"', "\N{IDEOGRAPHIC FULL STOP}": ". ",
    "\N{ARABIC PERCENT SIGN}": "%", "\N{ARABIC DECIMAL SEPARATOR}": ".", "\N{ARABIC THOUSANDS SEPARATOR}": ",",
    "\N{LEFT SINGLE QUOTATION MARK}": "'", "\N{HORIZONTAL ELLIPSIS}": "...",
}  # fmt: skip
_ROOT = re.compile(r"\N{SQUARE ROOT}\s*(\d+(?:\.\d+)?)")
_RAISED = re.compile(r"[\u00b2\u00b3\u00b9\u2070\u2071\u2074-\u207f]+")
_LOWERED = re.compile(r"[\u2080-\u208e]+")


class _Translations(dict[int, str]):
    """The translation of a character: from the table, else from Unicode's own tables, else the character itself."""

    def __missing__(self, code: int) -> str:
        self[code] = found = chr(code) if code < 128 else _translate(chr(code))
        return found


_UNICODE = _Translations(str.maketrans(_SIGNS))


def unicode_to_latex(text: str) -> str:
    r"""The text with `½`, `x²`, `√12`, `π`, and digits and signs of other scripts, in ASCII as LaTeX writes them."""
    if text.isascii():
        return text
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _RAISED.sub(lambda found: f"^{{{normalize('NFKC', found.group())}}}", text)
    text = _LOWERED.sub(lambda found: f"_{{{normalize('NFKC', found.group())}}}", text)
    return text.translate(_UNICODE)


def _translate(character: str) -> str:
    if (digit := decimal(character, None)) is not None:
        return str(digit)
    kind, *codes = decomposition(character).split() or [""]
    if kind == "<fraction>" and len(parts := normalize("NFKC", character).split("\N{FRACTION SLASH}")) == 2:
        return rf"\frac{{{parts[0]}}}{{{parts[1]}}}"
    if kind in ("<wide>", "<narrow>", "<small>", "<font>") and codes:
        return _UNICODE[int(codes[0], 16)]
    if category(character) == "Zs":
        return " "
    if category(character) == "Cf":  # invisible
        return ""
    alphabet, _, letter = name(character, "").partition(" LETTER ")
    if alphabet in ("GREEK SMALL", "GREEK CAPITAL") and (letter := letter.replace("LAMDA", "LAMBDA")).isalpha():
        return "\\" + (letter.lower() if alphabet == "GREEK SMALL" else letter.capitalize()) + " "
    return character


_NORMALISATIONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<!\\)\\[\[\]()]|(?<!\\)\$|\\\$", " "),  # mathematics delimiters, and dollars
        (r"[€£¥₹₽₩฿]", " "),
        (r"\\m?(?:left|right)(?![a-zA-Z])\s*\.?|\\[bB]igg?[lrm]?(?![a-zA-Z])", ""),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|hfill|hline)(?![a-zA-Z])", " "),
        (r"\\begin\{array\}\s*\{[clr|\s]*\}", r"\\begin{array}"),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\!\s*", ""),
        (r"\s*\{\s*,\s*\}", ","),
        (r"(?<=\d)(?:\\[,;: ]|~)(?=\d{3}(?!\d))", ","),  # a thin space between thousands
        (r"(?<!\\)\\[,;: >]|~|\\q?quad|\\(?:enspace|thinspace|enskip)(?![a-zA-Z])", " "),
        (r"\\(?:lbrace|lbrack)(?![a-zA-Z])", r"\\{"),
        (r"\\(?:rbrace|rbrack)(?![a-zA-Z])", r"\\}"),
        (r"\\langle(?![a-zA-Z])", "("),
        (r"\\rangle(?![a-zA-Z])", ")"),
        (r"\\(?:[lr]?vert|mid)(?![a-zA-Z])", "|"),
        (r"\\(?:leq|leqslant|leqq)(?![a-zA-Z])|<=|=<|\\le(?=[a-zA-Z](?![a-zA-Z]))", r"\\le "),
        (r"\\(?:geq|geqslant|geqq)(?![a-zA-Z])|>=|\\ge(?=[a-zA-Z](?![a-zA-Z]))", r"\\ge "),
        (r"\\(?:neq)(?![a-zA-Z])|!=|\\not\s*=", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:varnothing|O)(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\(?:ast|star)(?![a-zA-Z])", "*"),
        (r"\\(?:div)(?![a-zA-Z])", "/"),
        (r"\^\s*\{\s*\\circ\s*\}|\\degrees?(?![a-zA-Z])|\\textdegree(?![a-zA-Z])|\^\s*\\circ(?![a-zA-Z])", r"^\\circ "),
        (r"(?<![\\a-zA-Z])(?:infinity|inf|oo)(?![a-zA-Z])", r"\\infty "),
        (r"\+\s*\\infty", r"\\infty"),
        (r"\\(?:mathbb|mathbf|mathrm)\s*\{?R\}?(?![a-zA-Z])", r"(-\\infty,\\infty)"),
        (r"(?<![\\a-zA-Z])(pi|sqrt|sin|cos|tan|cot|sec|csc|log|ln|theta|alpha|beta)(?![a-zA-Z])", r"\\\1 "),
        (r"\*\*", "^"),
        (r"([_^])\s*\{\s*(\w)\s*\}(?!\d)", r"\1\2"),
        (r"(?<=[\d)}])\s*(and|or)(?=[A-Za-z(\\]\s*[(=_])", r" \1 "),  # two answers whose spaces were lost
    )
)
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z%${}!,;()\[\]])")
_HALVED = re.compile(r"\\(?=[\s\d-])")
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|normal|tt)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|operatorname|rm|bf)\s*\{"
)
_ALL_TEXT = re.compile(r"^\s*\\text\s*\{([^{}\\]*\d[^{}\\]*)\}\s*$")  # `\text{5 apples}`
_MEASURE = re.compile(r"[\d}](?:\s|~|\\[,;: ])*$")  # what may precede a unit
_FUNCTIONS = re.compile(r"(?:arc|a)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|gcd|lcm|max|min|det")
_SCALES = frozenset(("hundred", "thousand", "million", "billion", "trillion"))
_JOINING = re.compile(r"[\s,;]*(?:and|or)[\s,;]*", re.IGNORECASE)
_LEADING = re.compile(r"(?:[\s,;:'\"`]|\.(?!\d))+")
_MARKS = ' ,;:\\"`'
_ELLIPSIS = re.compile(r"(\.\d+)\.{3,}$", re.ASCII)  # of a decimal: `5...` and `1, 2, ...` continue with other values
_FRAC = re.compile(r"\\frac(?![a-zA-Z])\s*")
_SQRT = re.compile(r"\\sqrt(?![a-zA-Z])\s*(?:\{\s*\}\s*)?(\[[^\]]*\])?\s*")
_BRACKET = re.compile(r"[(){}]")
_MAX_DEPTH = 50
_CALL = re.compile(r"(\\sqrt|\^)\s*\(")


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """Normalise a text; of one longer than `MAX_LENGTH` characters only the white space."""
    if len(text) > MAX_LENGTH or len(text := unicode_to_latex(text)) > MAX_LENGTH:
        return " ".join(text.split())
    text = text.strip().strip("*")
    if r"\begin{" not in text:
        text = _DOUBLED.sub(r"\\", text)
    elif r"\\" not in text:  # rows whose backslashes were halved
        text = _HALVED.sub(r"\\\\", text)
    text = unwrap_text(_ALL_TEXT.sub(r"\1", text))
    for pattern, replacement in _NORMALISATIONS:
        text = pattern.sub(replacement, text)
    text = _arguments(text)
    return re.sub(r"^=\s*(?=[^\s=])", "", trim(text))


def trim(text: str) -> str:
    """The text without surrounding punctuation, its white space collapsed."""
    text = " ".join(text.split())
    is_quoted = text.lstrip(' .,;:"')[:1] in ("'", "`")
    text = _ELLIPSIS.sub(r"\1", text.rstrip(_MARKS + "'" * is_quoted))
    if not text.endswith("..."):
        text = text.rstrip(_MARKS + "." + "'" * is_quoted)
    found = _LEADING.match(text)
    return text[found.end() :] if found else text


def unwrap_text(text: str) -> str:
    r"""`\text{and}` as `and`, `\mathrm{e}` as `e`; other words as `\text{…}`, whatever the command was."""
    pieces, begin = [], 0
    while found := _TEXT.search(text, begin):
        end = closing_brace(text, found.end())
        if end is None:
            break
        written = text[found.end() : end]
        inside = written.strip(" ~").strip("$").strip()
        before = text[begin : found.start()]
        if len(inside) == 1 and inside in UNIT_SYMBOLS and _MEASURE.search(before[-10:]):
            upright = rf" \text{{{inside}}} "
        else:
            upright = _upright(inside, found.group()[1:2] in ("t", "m") and "math" not in found.group())
        if re.match(r"[ ~]|.+[ ~]$", written, re.DOTALL):  # `1\text{ }2` is not 12
            upright = f" {upright} "
        pieces += [before, upright]
        begin = end + 1
    return "".join([*pieces, text[begin:]])


def _upright(inside: str, is_text: bool) -> str:
    if _JOINING.fullmatch(inside):
        return f" {inside.strip(' ,;').lower()} "
    if _FUNCTIONS.fullmatch(inside):
        return f"\\{inside} "
    if inside in _SCALES:
        return f" {inside} "
    letters = sum(character.isalpha() for character in inside)
    if (
        not letters
        or (len(inside) == 1 and not (is_text and inside.islower()))
        or (inside.startswith("\\") and not inside.startswith("\\%"))
    ):
        return inside
    return f" \\text{{{inside}}} "


def _arguments(text: str) -> str:
    r"""`\frac12`, `\sqrt3`, `\sqrt(2)` and `2^(1/4)` with braces around their arguments."""
    if text.count("\\frac") + text.count("\\sqrt") > _MAX_COMMANDS:  # the text grows with each
        return text
    depth = 0
    for mark in _BRACKET.finditer(text):
        depth += 1 if mark.group() in "({" else -1
        if depth > _MAX_DEPTH:  # too deep to be parsed as mathematics, and each command would be scanned to its end
            return text
    begin = 0
    while found := _FRAC.search(text, begin):
        first, after = _argument(text, found.end())
        second, rest = _argument(text, after)
        text = f"{text[: found.start()]}\\frac{first}{second}{text[rest:]}"
        begin = found.start() + len("\\frac{")
    begin = 0
    while found := _SQRT.search(text, begin):
        argument, rest = _argument(text, found.end())
        text = f"{text[: found.start()]}\\sqrt{found[1] or ''}{argument}{text[rest:]}"
        begin = found.start() + len("\\sqrt{")
    begin = 0
    while found := _CALL.search(text, begin):
        begin = found.end()
        end = _closing_parenthesis(text, begin)
        if end is not None:
            text = f"{text[: found.start()]}{found[1]}{{{text[begin:end]}}}{text[end + 1 :]}"
    return text


def _argument(text: str, begin: int) -> tuple[str, int]:
    """The argument of a command at `begin`, in braces, and where it ends."""
    while begin < len(text) and text[begin] == " ":
        begin += 1
    if text[begin : begin + 1] == "{":
        end = closing_brace(text, begin + 1)
        return (text[begin:], len(text)) if end is None else (text[begin : end + 1], end + 1)
    if text[begin : begin + 1] == "(":
        end = _closing_parenthesis(text, begin + 1)
        if end is not None:
            return "{" + text[begin + 1 : end] + "}", end + 1
    command = re.compile(r"\\[a-zA-Z]+|.?", re.DOTALL).match(text, begin)
    assert command is not None  # the pattern also matches the empty text
    return "{" + command.group() + "}", command.end()


def _closing_parenthesis(text: str, begin: int) -> int | None:
    depth = 1
    for position in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None
