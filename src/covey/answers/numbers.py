"""Numbers as people and LaTeX write them, read exactly: `1,334`, `7/2`, `1\\frac{1}{2}`, `2.3 \\times 10^{-3}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

_PLAIN = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?", re.ASCII)
_DOLLAR = re.compile(r"^([+-]?)\$ ?")  # `$5`, `-$5`; a sign after the dollar is the number's own
_MAX_LENGTH = 200  # a longer "number" is a runaway completion; comparing it as text is enough


def canonical_number(text: str) -> str:
    """A spelling-independent form: `1,334`, `+1334`, `1334.0`, `1334.` and `$1334` all become `1334`.

    Text that is not one plain decimal number is returned with its white space folded, otherwise as it is.
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
    """A number, and how precisely it was written."""

    value: Fraction
    places: int | None = None
    """Digits after the point of what was written as a decimal; None for what is exact: whole numbers and fractions."""
    significant: int = 0
    """Digits of such a decimal from the first that is not zero."""

    @property
    def half_step(self) -> Fraction:
        """Half a unit of the last place that was written."""
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
    rf"{_SIGN}(\d[\d,]*)(?:\s*\\frac\s*\{{\s*(\d+)\s*\}}\s*\{{\s*(\d+)\s*\}}|(?:\s+and\s+|\s+|-)(\d+)\s*/\s*(\d+))",
    re.ASCII,
)
_RECURRING = re.compile(rf"{_SIGN}(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{{?(\d+)\}}?", re.ASCII)
_SCALE = re.compile(r"(.*\d)\s*(hundred|thousand|million|billion|trillion)", re.ASCII)
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_TOLERANCE = Fraction(1, 10**6)


def read_number(text: str) -> Number | None:
    """The number that a tidied text is, all of it; None when it is not one number."""
    text = text.strip()
    if not text or len(text) > _MAX_LENGTH:
        return None
    if found := _SCALE.fullmatch(text):
        inner = read_number(found[1])
        return None if inner is None else _shifted(inner, _SCALES[found[2]])
    if found := _DECIMAL.fullmatch(text):
        return _decimal(found["sign"], found["digits"])
    if found := _SCIENTIFIC.fullmatch(text):
        if found["alone"]:
            return Number(_signed(found["sign"], Fraction(10) ** int(found["only"].replace(" ", ""))))
        power = (found["power"] or found["e"]).replace(" ", "")
        return _shifted(_decimal(found["sign"], found["digits"]), int(power))
    return _read_fraction(text)


def read_decimal_comma(text: str) -> Number | None:
    """`1000,99` read as continental Europe writes it; None for what is no such number (`1,000` is a thousand)."""
    text = text.strip()
    if len(text) > _MAX_LENGTH or not _COMMA.fullmatch(text) or _DECIMAL.fullmatch(text):
        return None
    return read_number(text.replace(",", "."))


def _read_fraction(text: str) -> Number | None:
    if found := _MIXED.fullmatch(text):
        whole, above, below = found[2], found[3] or found[5], found[4] or found[6]
        if not int(below):
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
    return Number(value, len(decimals), len(plain.replace(".", "").lstrip("0")))


def _shifted(number: Number, power: int) -> Number:
    value = number.value * Fraction(10) ** power
    places = None if number.places is None else number.places - power
    return Number(value, places, number.significant)


def _signed(sign: str, value: Fraction) -> Fraction:
    return -value if sign == "-" else value


def _value(text: str) -> Fraction:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text.removeprefix("+"))
    return _decimal(sign, digits.strip()).value


def numbers_agree(first: Number, second: Number) -> bool:
    """Whether two numbers are one, in the precision in which they were written.

    Whole numbers and fractions are exact. A decimal may also be the other number rounded to the places shown, if it
    shows at least three digits (of a value with no end, such as 1/3) or four (of one that has an end), or differ by a
    millionth of it, which is computers' noise.
    """
    gap = abs(first.value - second.value)
    if not gap:
        return True
    if first.places is None and second.places is None:
        return False
    largest = max(abs(first.value), abs(second.value))
    if gap <= _TOLERANCE * largest and max(first.significant, second.significant) > 6:
        return True
    return _is_rounded(first, second) or _is_rounded(second, first)


def _is_rounded(coarse: Number, fine: Number) -> bool:
    if coarse.places is None or coarse.places < 1 or (fine.places is not None and fine.places <= coarse.places):
        return False
    needed = 3 if fine.places is None and not _ends(fine.value) else 4
    return coarse.significant >= needed and abs(coarse.value - fine.value) <= coarse.half_step


def _ends(value: Fraction) -> bool:
    """Whether the decimal expansion of a fraction ends."""
    below = value.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    return below == 1
