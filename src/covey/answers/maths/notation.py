r"""Answers in one form: LaTeX, Unicode and Markdown tidied, numbers read exactly, units split off.

The meaning of a text stays: its units, percent signs and brackets are kept. A unit that only one side writes does not
matter; two known units that differ are two answers. A percent sign that only one side writes may mean the number itself
or a hundredth of it. A single letter is a unit if it is separated from its number (`12 m`) or set upright; `12m` is a
product.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
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
_JOINING = re.compile(r"[\s,;]*(?:and|or)[\s,;]*", re.IGNORECASE)
_LEADING_MARKS = re.compile(r"(?:[\s,;:'\"`]|\.(?!\d))+")
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
    found = _LEADING_MARKS.match(text)
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
    if inside in ("hundred", "thousand", "million", "billion", "trillion"):
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


_PLAIN = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?", re.ASCII)
_DOLLAR = re.compile(r"^([+-]?)\$ ?")  # `$5`, `-$5`; a sign after the dollar is the number's own
_MAX_NUMBER_LENGTH = 200  # a longer "number" is a runaway completion; comparing it as text is enough


def canonical_number(text: str) -> str:
    """A canonical form: `1,334`, `+1334`, `1334.0`, `1334.` and `$1334` all become `1334`.

    Text that is not one plain decimal number is returned with its white space collapsed.
    """
    folded = " ".join(text.split())
    bare = _DOLLAR.sub(r"\1", folded.replace("\N{MINUS SIGN}", "-"))
    if len(bare) > _MAX_NUMBER_LENGTH or not any(c.isdigit() for c in bare) or not _PLAIN.fullmatch(bare):
        return folded
    plain = format(Decimal(bare.replace(",", "")), "f")
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return "0" if plain in ("-0", "") else plain


@dataclass(frozen=True, slots=True)
class Number:
    """A number and its written precision."""

    value: Fraction
    places: int | None = None
    """Decimal places; None for exact numbers: whole numbers and fractions."""
    significant: int = 0
    """Significant digits of a decimal, without trailing zeros."""

    @property
    def half_step(self) -> Fraction:
        """Half a unit of the last decimal place."""
        return Fraction(1, 2) / Fraction(10) ** (self.places or 0)


_UNSIGNED = r"(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+|\d+)(?:\.\d*)?|\.\d+"
_SIGN = r"(?P<sign>[+-]?)\s*"
_POWER_OF_TEN = r"10\s*\^\s*\{?\s*(?P<power>[+-]?\s?\d{1,3})\s*\}?"
_DECIMAL = re.compile(rf"{_SIGN}(?P<digits>{_UNSIGNED})", re.ASCII)
_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_SCIENTIFIC = re.compile(
    rf"{_SIGN}(?:(?P<digits>{_UNSIGNED})(?:\s*(?:\\times|\\cdot|\*|x)\s*{_POWER_OF_TEN}|[eE](?P<e>[+-]?\d{{1,3}}))"
    rf"|(?P<alone>{_POWER_OF_TEN.replace('power', 'only')}))",
    re.ASCII,
)
_PART = rf"\s*\(?\s*([+-]?\s?(?:{_UNSIGNED}))\s*\)?\s*"
_FRACTION = re.compile(rf"{_SIGN}(?:\\frac\s*\{{{_PART}\}}\s*\{{{_PART}\}}|{_PART}/{_PART})", re.ASCII)
_MIXED = re.compile(
    rf"{_SIGN}(\d+(?:,\d{{3}})*)(?:\s*\\frac\s*\{{\s*(\d+)\s*\}}\s*\{{\s*(\d+)\s*\}}|(?:\s+and\s+|\s+)(\d+)\s*/\s*(\d+))",
    re.ASCII,
)
_RECURRING = re.compile(rf"{_SIGN}(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{{?(\d+)\}}?", re.ASCII)
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "quadrillion": 15}
_SCALES |= {"quintillion": 18, "lakh": 5, "crore": 7}
SCALE = rf"(?:{'|'.join(_SCALES)})s?"
_SCALE = re.compile(rf"(.*\d)\s*({SCALE})", re.ASCII)


@lru_cache(maxsize=4096)
def read_number(text: str) -> Number | None:
    """Parse a tidied text as one number; None when it is not one."""
    text = text.strip()
    if not text or len(text) > _MAX_NUMBER_LENGTH:
        return None
    if found := _SCALE.fullmatch(text):
        inner = read_number(found[1])
        return None if inner is None else shifted(inner, _SCALES[found[2].removesuffix("s")])
    if found := _DECIMAL.fullmatch(text):
        return _decimal(found["sign"], found["digits"])
    if found := _SCIENTIFIC.fullmatch(text):
        if found["alone"]:
            return Number(_signed(found["sign"], Fraction(10) ** int(found["only"].replace(" ", ""))))
        power = (found["power"] or found["e"]).replace(" ", "")
        return shifted(_decimal(found["sign"], found["digits"]), int(power))
    return _read_fraction(text)


def read_decimal_comma(text: str) -> Number | None:
    """`1000,99` with a decimal comma, as in continental Europe; None for other texts (`1,000` is a thousand)."""
    text = text.strip()
    if len(text) > _MAX_NUMBER_LENGTH or not _COMMA.fullmatch(text) or _DECIMAL.fullmatch(text):
        return None
    if not text.partition(",")[2].strip("0"):  # `72,0` are two numbers
        return None
    return read_number(text.replace(",", "."))


def _read_fraction(text: str) -> Number | None:
    if found := _MIXED.fullmatch(text):
        whole, above, below = found[2], found[3] or found[5], found[4] or found[6]
        if not 0 < int(above) < int(below):  # `92 88/1` is a sum in disguise
            return None
        return Number(_signed(found["sign"], int(whole.replace(",", "")) + Fraction(int(above), int(below))))
    if found := _FRACTION.fullmatch(text):
        above, below = (_value(part) for part in (found[2] or found[4], found[3] or found[5]))
        return Number(_signed(found["sign"], above / below)) if below else None
    if found := _RECURRING.fullmatch(text):
        whole, lead, cycle = found[2], found[3], found[4]
        rest = Fraction(int(cycle), 10 ** len(lead) * (10 ** len(cycle) - 1))
        return Number(_signed(found["sign"], Fraction(f"{whole or 0}.{lead or 0}") + rest))
    return None


def _decimal(sign: str, digits: str) -> Number:
    plain = digits.replace(",", "").replace(" ", "")
    value = _signed(sign, Fraction(plain if plain[0] != "." else "0" + plain))
    _, point, decimals = plain.partition(".")
    if not point or not decimals:
        return Number(value)
    return Number(value, len(decimals), len(plain.rstrip("0").replace(".", "").lstrip("0")))


def shifted(number: Number, power: int) -> Number:
    """A number times a power of ten."""
    value = number.value * Fraction(10) ** power
    places = None if number.places is None else number.places - power
    return Number(value, places, number.significant)


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _value(text: str) -> Fraction:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text.removeprefix("+"))
    return _decimal(sign, digits.strip()).value


def numbers_agree(gold: Number, prediction: Number) -> bool:
    """Whether two numbers are equal at their written precision.

    Whole numbers and fractions are exact. A decimal may also be the other number rounded, if it has at least three
    significant digits (of a value that does not terminate, such as 1/3) or four (of one that does). A gold decimal
    needs five to be the rounding of a longer decimal: 18.251 is not 18.25, but 3.14159 is 3.1416.
    """
    if gold.value == prediction.value or _is_rounded(prediction, gold):
        return True
    return (prediction.places is None or gold.significant > 4) and _is_rounded(gold, prediction)


def _is_rounded(coarse: Number, fine: Number) -> bool:
    if coarse.places is None or coarse.places < 1 or (fine.places is not None and fine.places <= coarse.places):
        return False
    terminates = pow(10, fine.value.denominator.bit_length(), fine.value.denominator) == 0  # every 2 and 5 is in it
    needed = 3 if fine.places is None and not terminates else 4
    return coarse.significant >= needed and rounds_to(fine.value, coarse)


def rounds_to(value: Fraction, decimal: Number) -> bool:
    """Whether a decimal is the value rounded to its places. A value closer than a thousandth of half a step, but not
    equal, counts as another decimal with a little added."""
    gap = abs(value - decimal.value)
    return not gap or decimal.half_step / 1000 < gap <= decimal.half_step


_UNITS = {
    "mm": "millimetre millimeter", "cm": "centimetre centimeter", "m": "metre meter", "km": "kilometre kilometer",
    "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram gm", "kg": "kilogram kilo kgs",
    "mg": "milligram", "lb": "pound lbs", "oz": "ounce", "ton": "tonne", "s": "sec second", "min": "minute mins",
    "h": "hr hour hrs", "day": "", "week": "wk", "month": "", "year": "yr", "l": "litre liter",
    "ml": "millilitre milliliter", "gal": "gallon", "pt": "pint", "qt": "quart", "cup": "", "dollar": "usd buck",
    "cent": "", "euro": "eur", "yuan": "rmb", "rupee": "rs", "mph": "", "kmph": "kmh", "unit": "", "degree": "deg",
    "radian": "rad", "acre": "", "hectare": "ha", "hz": "hertz", "n": "newton", "j": "joule", "w": "watt", "v": "volt",
    "pa": "pascal", "kw": "kilowatt", "mol": "mole",
}  # fmt: skip
_CANONICAL = {name: unit for unit, names in _UNITS.items() for name in (unit, *names.split())}
_AMBIGUOUS = frozenset(("in", "pa", "deg"))  # words, or products of variables, rather than units after an expression
_SAFE = sorted((name for name in _CANONICAL if len(name) > 1 and name not in _AMBIGUOUS), key=len, reverse=True)

_PERCENT = re.compile(
    r"\s*(?:\\?%|\\text\{\s*(?:percent(?:age)?|pct\.?|\\?%)\s*\}|percent(?:age)?(?:\s+points?)?|pct)\s*$"
)
_DEGREES = re.compile(r"\s*\^\\circ\s*(?:\\text\{\s*[CF]\s*\}|[CF])?\s*$")
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")  # its degrees cannot be left out
_TEXT_UNIT = re.compile(r"(?<=\S)\s*\\text\{(?P<unit>[^{}]*)\}\s*(?:\^\s*\{?\d\}?)?\s*$")
_KNOWN = rf"(?:[kcm]?m\s*/\s*(?:s|h|min)|(?:(?:square|cubic|sq\.?|cu\.?)\s+)?(?:{'|'.join(_SAFE)})(?:e?s)?)"
_KNOWN_UNIT = re.compile(
    rf"(?<=[\d}})\s])\s*(?<![a-zA-Z\\])(?P<unit>{_KNOWN}(?:\s*(?:/|per)\s*[a-z]+)?)\s*(?:\^\s*\{{?\d\}}?)?\s*$"
)
_SYMBOL = rf"[{UNIT_SYMBOLS}](?![a-zA-Z])"
_EXPONENT = re.compile(r"\^\s*\{?-?\d\}?")
_UNIT_POWER = r"(?:\s*\^\s*\{?-?\d\}?)?"
_COUNTED = re.compile(  # `12 red eggs`, `12 eggs/day`, `12 m^2`, `12 kg m/s`, `2 million people`
    rf"(?P<number>[-+]?[\d.,/]*\d(?:\s+{SCALE})?)(?:\s+(?P<unit>[a-zA-Z]+{_UNIT_POWER}"
    rf"(?:(?:[\s-]+|\s*(?:/|\\cdot)\s*)[a-zA-Z]+{_UNIT_POWER}){{0,4}})|/\s*(?P<each>[a-zA-Z]{{3,}}))\s*$"
)
_AFTER_CONSTANT = re.compile(
    rf"(?:(?<=[\d}})])\s+(?P<unit>{_SYMBOL}){_UNIT_POWER}|(?<=\\pi)\s+m\s*\^\s*\{{?[23]\}}?)\s*$"
)
_SYMBOL_LAST = re.compile(rf"\s{_SYMBOL}{_UNIT_POWER}\s*$")
_VARIABLE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]")
_NOUNS = """
people person man men woman women child children kid boy girl adult baby student teacher friend brother sister family
couple member guest visitor customer passenger patient worker employee player fan team runner soldier ticket elves
fairy animal dog puppy cat kitten cow horse pig goat sheep rabbit mouse mice bird chicken duck fish turtle frog bug bee
ant leg eye teeth egg apple orange banana pear peach grape cherry strawberry lemon mango watermelon tomato potato
carrot onion seed pumpkin vegetable fruit cookie cake cupcake pie brownie muffin donut candy chocolate cracker chip
bread loaf loaves roll sandwich pizza burger pancake snack meal lunch dinner drink soda juice milk water coffee tea
bottle can jar glass bowl plate spoon slice piece serving scoop batch box carton crate case bag basket bucket tank pack
packet package pile container envelope sheet block brick stone rock log board stick branch leaf leaves flower rose tree
plant garden house home apartment building room floor wall door window table chair bed light bulb candle watch picture
painting photo poster step tile street car truck bus train plane boat ship bike wheel tire seat trip ride lap turn toy
doll ball balloon bead marble card stamp sticker coin puzzle game movie show song video book notebook novel magazine
newspaper letter message email post page chapter story word line note pen pencil crayon marker eraser paper shirt dress
pants sock shoe hat button ring necklace bracelet pearl key nail rope battery computer phone episode goal point shot
match round vote test question problem mistake lesson class school job task visit call gift present prize sale order
item product thing part section group row column pair type color shape triangle rectangle circle cube edge face vertex
vertices diagonal corner dot digit number integer value solution root factor divisor prime multiple term element subset
function permutation way path choice handshake time jump move rotation morning night weekend decade century season hole
tablespoon teaspoon calorie profit money shell paint sugar flour butter oil gas gold wood fabric ice bit byte mpg rpm
gb mb kb
"""
_DESCRIBING = """
more fewer extra additional new other different distinct possible whole full average positive real large square
cubic sq cu fluid red blue green yellow white black brown pink of per a an the every in for
"""
_AFTER_NOUNS = "left remaining total altogether each old tall long wide high deep away apart celsius fahrenheit"
_BEFORE_NOUNS = frozenset(_DESCRIBING.split()) - _CANONICAL.keys()
_NAMED = (*_NOUNS.split(), *_AFTER_NOUNS.split(), *_CANONICAL)
_LISTED = frozenset((*UNIT_SYMBOLS, *(word for word in _NAMED if len(word) > 1)))
_CHANGES = re.compile(  # no unit even where the gold answer or the question has the word
    rf"{SCALE}|(?:squar|cub|halv|doubl|tripl|divid)ed|factorial|reciprocal|inverse|negative|positive|minus|plus|times|over"
    r"|under|below|above|less|more|fewer|least|most|than|half|halves|twice|(?:third|fourth|quarter|fifth|sixth|seventh"
    r"|eighth|ninth|(?:ten|hundred|thousand)th|dozen|crore|lakh)s?|zero|one|two|three|four|five|six|seven|eight|nine|ten"
    r"|gross|score|point|base|binary|octal|hex|or|not|no|is|if|and|wrong|incorrect|impossible"
)
_WORD = re.compile(r"(?<!\\)\b[^\W\d_]{2,}")
own: ContextVar[frozenset[str]] = ContextVar("own", default=frozenset())
"""`own_words` of the answers that are being compared."""
_LEADING_WORDS = re.compile(
    r"^\s*(?:(?:\\text\{\s*)?(?:Rs|USD|EUR|GBP|US|about|approximately|approx|around|exactly|nearly)\.?(?:\s*\})?"
    r"|\\approx|\\sim)\s*(?=[\d.+\\-])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """An answer split into its value and its unit."""

    core: str
    unit: str = ""
    percent: bool = False
    power: str = ""
    """The exponent of the unit."""


@lru_cache(maxsize=1024)
def own_words(gold: str, question: str = "") -> frozenset[str]:
    """The words of a gold answer and of its question, which are units after a number too."""
    words = map(str.lower, _WORD.findall(f"{gold} {question}"))
    return frozenset(word for word in words if not _CHANGES.fullmatch(word))


def measured(text: str) -> Measured:
    """Split off a tidied answer's unit and percent sign. A text of words only is left as it is."""
    words = own.get()
    return _measured(text, words if words and _WORD.search(text) else frozenset())


@lru_cache(maxsize=4096)
def _measured(text: str, words: frozenset[str]) -> Measured:
    core, unit, percent, power = _LEADING_WORDS.sub("", text), "", False, ""
    if found := _PERCENT.search(core):
        core, percent = core[: found.start()], bool(core[: found.start()].strip())
    if (found := _COUNTED.fullmatch(core.strip())) and _is_unit(found["unit"] or found["each"], words):
        return Measured(found["number"], _canonical(found["unit"] or ""), percent, _power(found["unit"] or ""))
    for _ in range(2):  # `\text{ cm}^2 \text{ of paper}`
        for pattern in (_TEXT_UNIT, _KNOWN_UNIT) if _ANGLE.search(core) else (_DEGREES, _TEXT_UNIT, _KNOWN_UNIT):
            found = pattern.search(core)
            if found is None or not _is_unit(name := found.groupdict().get("unit"), words):
                continue
            if any(c.isdigit() or c == "\\" for c in core[: found.start()]):
                core, unit, power = core[: found.start()], name or "degree", _power(found.group())
                break
    if (found := _AFTER_CONSTANT.search(core)) and not _VARIABLE.search(core, 0, found.start()):
        core, unit, power = core[: found.start()], found["unit"] or "m", _power(found.group())
    core = core.strip()
    return Measured(core, _canonical(unit), percent, power) if core else Measured(text)


def _is_unit(text: str | None, others: frozenset[str]) -> bool:
    """Whether the words after a number are units, counted things, or belong to these."""
    text = _EXPONENT.sub("", text or "")
    words = [word.lower() if len(word) > 1 else word for word in re.findall(r"(?<!\\)\b[^\W\d_]+", text)]
    named = [bool(_stems(word) & (others | _LISTED)) for word in words]
    return (
        not any(map(str.isdigit, text))
        and all(known or word in _BEFORE_NOUNS for known, word in zip(named, words, strict=True))
        and all(named[-1:])
    )


def _stems(word: str) -> frozenset[str]:
    """A word and what may be its singular."""
    return frozenset((word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word)))


def both_measured(gold: str, prediction: str) -> tuple[Measured, Measured]:
    """Both sides without units; if one has a variable, a single letter at the end of the other is a variable too."""
    first, second = measured(gold), measured(prediction)
    if _VARIABLE.search(second.core) and _SYMBOL_LAST.search(gold):
        first = Measured(gold)
    if _VARIABLE.search(first.core) and _SYMBOL_LAST.search(prediction):
        second = Measured(prediction)
    return first, second


def _canonical(unit: str) -> str:
    """The canonical name of a known unit; empty for any other word, which cannot contradict a unit."""
    word = unit.partition("^")[0].strip().lower().rstrip(".")
    return next((_CANONICAL[name] for name in _stems(word) if name in _CANONICAL), "")


def _power(unit: str) -> str:
    """The exponent of a unit; empty where there is none."""
    found = re.search(r"\^\s*\{?(-?\d)\}?\s*$", unit)
    return found[1] if found else ""


def units_differ(first: Measured, second: Measured) -> bool:
    """Whether both sides have known units and these, or their exponents, differ."""
    if not (first.unit and second.unit):
        return False
    return first.unit != second.unit or bool(first.power and second.power and first.power != second.power)


def agree_in_percent(gold: Number, prediction: Number, gold_percent: bool, prediction_percent: bool) -> bool:
    """Compare two numbers of which one or both carry a percent sign."""
    if numbers_agree(gold, prediction):
        return True
    if gold_percent == prediction_percent:
        return False
    return (
        numbers_agree(shifted(gold, -2), prediction) if gold_percent else numbers_agree(gold, shifted(prediction, -2))
    )
