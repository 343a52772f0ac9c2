r"""One spelling for what LaTeX, Unicode, Markdown and plain text write in many: what is compared is tidied first.

Nothing here changes what a text means: `\dfrac12`, `\left(`, `\,`, `×` and `$…$` are spelling; units, percent signs and
brackets are not, and stay.
"""

from __future__ import annotations

import re
from functools import lru_cache

from covey.answers.extract import closing_brace

MAX_LENGTH = 4_000  # a longer answer is compared as it stands

_UNICODE = str.maketrans(
    {
        "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{FULLWIDTH COMMA}": ",", "\N{FULLWIDTH LEFT PARENTHESIS}": "(",
        "\N{FULLWIDTH RIGHT PARENTHESIS}": ")", "\N{MULTIPLICATION SIGN}": r"\times ", "\N{DOT OPERATOR}": r"\cdot ",
        "\N{MIDDLE DOT}": r"\cdot ", "\N{DIVISION SIGN}": "/", "\N{DIVISION SLASH}": "/", "\N{FRACTION SLASH}": "/",
        "\N{SQUARE ROOT}": r"\sqrt ", "\N{INFINITY}": r"\infty ", "\N{DEGREE SIGN}": r"^\circ ",
        "\N{LESS-THAN OR EQUAL TO}": r"\le ", "\N{GREATER-THAN OR EQUAL TO}": r"\ge ", "\N{NOT EQUAL TO}": r"\ne ",
        "\N{ALMOST EQUAL TO}": r"\approx ", "\N{ELEMENT OF}": r"\in ", "\N{UNION}": r"\cup ",
        "\N{EMPTY SET}": r"\emptyset ", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{PLUS-MINUS SIGN}": r"\pm ", "\N{SUPERSCRIPT TWO}": "^2", "\N{SUPERSCRIPT THREE}": "^3",
        "\N{GREEK SMALL LETTER PI}": r"\pi ", "\N{GREEK SMALL LETTER THETA}": r"\theta ",
        "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}", "\N{VULGAR FRACTION ONE HALF}": r"\frac{1}{2}",
        "\N{VULGAR FRACTION ONE QUARTER}": r"\frac{1}{4}", "\N{VULGAR FRACTION THREE QUARTERS}": r"\frac{3}{4}",
        "\N{NO-BREAK SPACE}": " ", "\N{THIN SPACE}": " ", "\N{NARROW NO-BREAK SPACE}": " ",
    }
)  # fmt: skip

_SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"(?<!\\)\\[\[\]()]|(?<!\\)\$|\\\$", " "),  # the marks around mathematics, and dollars
        (r"[€£¥₹₽₩฿]", " "),
        (r"\\m?(?:left|right)(?![a-zA-Z])\s*\.?|\\[bB]igg?[lrm]?(?![a-zA-Z])", ""),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|hfill|hline)(?![a-zA-Z])", " "),
        (r"\\begin\{array\}\s*\{[clr|\s]*\}", r"\\begin{array}"),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\!\s*", ""),
        (r"\{,\}", ","),
        (r"(?<=\d)(?:\\[,;: ]|~)(?=\d{3}(?!\d))", ","),  # a thin space between thousands
        (r"(?<!\\)\\[,;: >]|~|\\q?quad|\\(?:enspace|thinspace|enskip)(?![a-zA-Z])", " "),
        (r"\\(?:lbrace|lbrack)(?![a-zA-Z])", r"\\{"),
        (r"\\(?:rbrace|rbrack)(?![a-zA-Z])", r"\\}"),
        (r"\\langle(?![a-zA-Z])", "("),
        (r"\\rangle(?![a-zA-Z])", ")"),
        (r"\\(?:[lr]?vert|mid)(?![a-zA-Z])", "|"),
        (r"\\(?:leq|leqslant|leqq)(?![a-zA-Z])|<=|=<|\\le(?=[a-zA-Z](?![a-zA-Z]))", r"\\le "),
        (r"\\(?:geq|geqslant|geqq)(?![a-zA-Z])|>=|\\ge(?=[a-zA-Z](?![a-zA-Z]))", r"\\ge "),
        (r"\\(?:neq)(?![a-zA-Z])|!=", r"\\ne "),
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
        (r"([_^])\s*\{\s*(\w)\s*\}", r"\1\2"),
        (r"(?<=[\d)}])\s*(and|or)(?=[A-Za-z(\\]\s*[(=_])", r" \1 "),  # two answers whose spaces were lost
    )
)
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z%${}!,;()\[\]])")
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|normal|tt)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|operatorname|rm|bf)\s*\{"
)
_FUNCTIONS = re.compile(r"(?:arc|a)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|gcd|lcm|max|min|det")
_SCALES = frozenset(("hundred", "thousand", "million", "billion", "trillion"))
_JOINING = re.compile(r"[\s,;]*(?:and|or)[\s,;]*", re.IGNORECASE)
_LEADING = re.compile(r"(?:[\s,;:'\"`]|\.(?!\d))+")
_TRAILING = " .,;:\\'\"`"
_FRAC = re.compile(r"\\frac(?![a-zA-Z])\s*")
_SQRT = re.compile(r"\\sqrt(?![a-zA-Z])\s*(?:\{\s*\}\s*)?(\[[^\]]*\])?\s*")
_CALL = re.compile(r"(\\sqrt|\^)\s*\(")


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """The text in one spelling. Over `MAX_LENGTH` characters only its white space is folded."""
    if len(text) > MAX_LENGTH:
        return " ".join(text.split())
    text = text.translate(_UNICODE).strip().strip("*")
    if r"\begin{" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = unwrap_text(text)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    text = _arguments(text)
    return trim(text)


def trim(text: str) -> str:
    """The text without punctuation around it, its white space folded."""
    text = " ".join(text.split()).rstrip(_TRAILING)
    found = _LEADING.match(text)
    return text[found.end() :] if found else text


def unwrap_text(text: str) -> str:
    r"""`\text{and}` as `and`, `\mathrm{e}` as `e`; other words as `\text{…}`, whatever command set them upright."""
    pieces, begin = [], 0
    while found := _TEXT.search(text, begin):
        end = closing_brace(text, found.end())
        if end is None:
            break
        inside = text[found.end() : end].strip().strip("$").strip()
        pieces += [
            text[begin : found.start()],
            _upright(inside, found.group()[1:2] in ("t", "m") and "math" not in found.group()),
        ]
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
    """The argument of a command that stands at `begin`, in braces, and where the text goes on."""
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
    assert command is not None  # the pattern matches the empty text too
    return "{" + command.group() + "}", command.end()


def _closing_parenthesis(text: str, begin: int) -> int | None:
    depth = 1
    for position in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None
