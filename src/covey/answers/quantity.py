"""Numbers with what stands around them: units, percent signs, degrees, currencies, the words "about" and "dollars".

The policy: a unit that only one side writes does not matter; two known units that differ are two answers. A percent
sign that only one side writes may mean the number itself or a hundredth of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from covey.answers.numbers import Number, numbers_agree, read_decimal_comma, read_number

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
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")  # its degrees are no unit to leave out
_TEXT_UNIT = re.compile(r"(?<=\S)\s*\\text\{(?P<unit>[^{}]*)\}\s*(?:\^\s*\{?\d\}?)?\s*$")
_KNOWN = rf"(?:[kcm]?m\s*/\s*(?:s|h|min)|(?:(?:square|cubic|sq\.?|cu\.?)\s+)?(?:{'|'.join(_SAFE)})(?:e?s)?)"
_KNOWN_UNIT = re.compile(
    rf"(?<=[\d}})\s])\s*(?<![a-zA-Z\\])(?P<unit>{_KNOWN}(?:\s*(?:/|per)\s*[a-z]+)?)\s*(?:\^\s*\{{?\d\}}?)?\s*$"
)
_COUNTED_WORD = (
    r"(?!(?:and|or|mod|is|if|for|to|hundred|thousand|million|billion|trillion|percent(?:age)?|pct|infinity)\b)[a-zA-Z]"
)
_COUNTED = re.compile(
    rf"(?P<number>[-+]?[\d.,/]*\d)\s+(?P<unit>{_COUNTED_WORD}[a-zA-Z]+(?:[\s-]+{_COUNTED_WORD}[a-zA-Z]*){{0,4}})\s*$"
)
_LEADING = re.compile(
    r"^\s*(?:(?:\\text\{\s*)?(?:Rs|USD|EUR|GBP|US|about|approximately|approx|around|exactly|nearly)\.?(?:\s*\})?"
    r"|\\approx|\\sim)\s*(?=[\d.+\\-])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What is left of an answer without its unit."""

    core: str
    unit: str = ""
    percent: bool = False


@lru_cache(maxsize=4096)
def measured(text: str) -> Measured:
    """Take a tidied answer's unit and percent sign off. A text that is nothing but words is left as it is."""
    core, unit, percent = _LEADING.sub("", text), "", False
    if found := _PERCENT.search(core):
        core, percent = core[: found.start()], bool(core[: found.start()].strip())
    for _ in range(2):  # `\text{ cm}^2 \text{ of paper}`
        for pattern in (_TEXT_UNIT, _KNOWN_UNIT) if _ANGLE.search(core) else (_DEGREES, _TEXT_UNIT, _KNOWN_UNIT):
            found = pattern.search(core)
            if found and any(c.isdigit() or c == "\\" for c in core[: found.start()]):
                unit = found.groupdict().get("unit") or "degree"
                core = core[: found.start()]
                break
    if found := _COUNTED.fullmatch(core.strip()):
        core, unit = found["number"], found["unit"]
    core = core.strip()
    return Measured(core, _canonical(unit), percent) if core else Measured(text)


def _canonical(unit: str) -> str:
    """A known unit by one name, without plural; any other word is no unit that could contradict another."""
    word = unit.strip().lower().rstrip(".")
    for name in (word, word.removesuffix("s"), word.removesuffix("es")):
        if name in _CANONICAL:
            return _CANONICAL[name]
    return ""


def units_differ(first: Measured, second: Measured) -> bool:
    """Whether both sides name a known unit, and not the same."""
    return bool(first.unit and second.unit and first.unit != second.unit)


def quantities_agree(gold: Measured, prediction: Measured) -> bool | None:
    """Compare two numbers, units aside; None where one of them is no number, or can be read in another way still."""
    target, readings = read_number(gold.core), _readings(prediction.core)
    if target is None or not readings:
        return None
    if any(agree_in_percent(target, number, gold.percent, prediction.percent) for number in readings):
        return not units_differ(gold, prediction)
    return None if "," in gold.core + prediction.core else False


def agree_in_percent(gold: Number, prediction: Number, gold_percent: bool, prediction_percent: bool) -> bool:
    """Compare two numbers of which one or both carry a percent sign."""
    if numbers_agree(gold, prediction):
        return True
    if gold_percent == prediction_percent:
        return False
    return numbers_agree(hundredth(gold), prediction) if gold_percent else numbers_agree(gold, hundredth(prediction))


def hundredth(number: Number) -> Number:
    """The number over a hundred."""
    places = None if number.places is None else number.places + 2
    return Number(number.value / Fraction(100), places, number.significant)


def _readings(core: str) -> list[Number]:
    """What a text can mean as a number; the comma of `3,5` counts as a decimal one in predictions only."""
    found = (read_number(core), read_decimal_comma(core))
    return [number for number in found if number is not None]
