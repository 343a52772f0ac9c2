"""Parsing numbers exactly, as people and LaTeX write them: `1,334`, `7/2`, `1\\frac{1}{2}`, `2.3 \\times 10^{-3}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

_PLAIN = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?", re.ASCII)
_DOLLAR = re.compile(r"^([+-]?)\$ ?")  # `$5`, `-$5`; a sign after the dollar is the number's own
_MAX_LENGTH = 200  # a longer "number" is a runaway completion; comparing it as text is enough


def canonical_number(text: str) -> str:
    """A canonical form: `1,334`, `+1334`, `1334.0`, `1334.` and `$1334` all become `1334`.

    Text that is not one plain decimal number is returned with its white space collapsed.
    """
    folded = " ".join(text.split())
    bare = _DOLLAR.sub(r"\1", folded.replace("\N{MINUS SIGN}", "-"))
    if len(bare) > _MAX_LENGTH or not any(c.isdigit() for c in bare) or not _PLAIN.fullmatch(bare):
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
_POWER = r"10\s*\^\s*\{?\s*(?P<power>[+-]?\s?\d{1,3})\s*\}?"
_DECIMAL = re.compile(rf"{_SIGN}(?P<digits>{_UNSIGNED})", re.ASCII)
_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_SCIENTIFIC = re.compile(
    rf"{_SIGN}(?:(?P<digits>{_UNSIGNED})(?:\s*(?:\\times|\\cdot|\*|x)\s*{_POWER}|[eE](?P<e>[+-]?\d{{1,3}}))"
    rf"|(?P<alone>{_POWER.replace('power', 'only')}))",
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
    if not text or len(text) > _MAX_LENGTH:
        return None
    if found := _SCALE.fullmatch(text):
        inner = read_number(found[1])
        return None if inner is None else _shifted(inner, _SCALES[found[2].removesuffix("s")])
    if found := _DECIMAL.fullmatch(text):
        return _decimal(found["sign"], found["digits"])
    if found := _SCIENTIFIC.fullmatch(text):
        if found["alone"]:
            return Number(_signed(found["sign"], Fraction(10) ** int(found["only"].replace(" ", ""))))
        power = (found["power"] or found["e"]).replace(" ", "")
        return _shifted(_decimal(found["sign"], found["digits"]), int(power))
    return _read_fraction(text)


def read_decimal_comma(text: str) -> Number | None:
    """`1000,99` with a decimal comma, as in continental Europe; None for other texts (`1,000` is a thousand)."""
    text = text.strip()
    if len(text) > _MAX_LENGTH or not _COMMA.fullmatch(text) or _DECIMAL.fullmatch(text):
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


def _shifted(number: Number, power: int) -> Number:
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
