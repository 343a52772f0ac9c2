"""Quantities: numbers with units, percent signs, degrees, currencies, and words such as "about" and "dollars".

The policy: a unit that only one side writes does not matter; two known units that differ are two answers. A percent
sign that only one side writes may mean the number itself or a hundredth of it. A single letter is a unit if it is
separated from its number (`12 m`) or set upright; `12m` is a product.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from covey.answers.maths.latex import UNIT_SYMBOLS
from covey.answers.maths.numbers import Number, numbers_agree, read_decimal_comma, read_number

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
_COUNTED_WORD = (
    r"(?!(?:and|or|mod|is|if|for|to|hundred|thousand|million|billion|trillion|percent(?:age)?|pct|infinity)\b)[a-zA-Z]"
)
_SYMBOL = rf"[{UNIT_SYMBOLS}](?![a-zA-Z])"
_EXPONENT = re.compile(r"\^\s*\{?-?\d\}?")
_POWER = r"(?:\s*\^\s*\{?-?\d\}?)?"
_COUNTED = re.compile(  # `12 red eggs`, `12 eggs/day`, `12 m^2`, `12 kg m/s`
    rf"(?P<number>[-+]?[\d.,/]*\d)(?:\s+(?P<unit>(?:{_COUNTED_WORD}[a-zA-Z]+|{_SYMBOL}){_POWER}"
    rf"(?:(?:[\s-]+|\s*(?:/|\\cdot)\s*)(?:{_COUNTED_WORD}[a-zA-Z]+|a\b|{_SYMBOL}){_POWER}){{0,4}})|/\s*[a-zA-Z]{{3,}})\s*$"
)
_AFTER_CONSTANT = re.compile(rf"(?:(?<=[\d}})])\s+(?P<unit>{_SYMBOL}){_POWER}|(?<=\\pi)\s+m\s*\^\s*\{{?[23]\}}?)\s*$")
_SYMBOL_LAST = re.compile(rf"\s{_SYMBOL}{_POWER}\s*$")
_VARIABLE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]")
_NO_UNIT = re.compile(  # words that change a number or offer another
    r"\d|^\s*(?:squared|cubed|factorial)\b|times\s+\w|(?<![a-z])(?:or|not|no|is|if|minus|plus|than|half|halves|twice|doubled|wrong|incorrect|over|divided|multiplied"
    r"|thirds?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundredths?|thousandths?"
    r"|dozens?|gross|score|lakhs?|crores?|quadrillion|cent (?:less|more))(?![a-z])",
    re.IGNORECASE,
)
_LEADING = re.compile(
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


@lru_cache(maxsize=4096)
def measured(text: str) -> Measured:
    """Split off a tidied answer's unit and percent sign. A text of words only is left as it is."""
    core, unit, percent, power = _LEADING.sub("", text), "", False, ""
    if found := _PERCENT.search(core):
        core, percent = core[: found.start()], bool(core[: found.start()].strip())
    if (found := _COUNTED.fullmatch(core.strip())) and _is_unit(found["unit"]):
        return Measured(found["number"], _canonical(found["unit"] or ""), percent, _power(found["unit"] or ""))
    for _ in range(2):  # `\text{ cm}^2 \text{ of paper}`
        for pattern in (_TEXT_UNIT, _KNOWN_UNIT) if _ANGLE.search(core) else (_DEGREES, _TEXT_UNIT, _KNOWN_UNIT):
            found = pattern.search(core)
            if found is None or not _is_unit(name := found.groupdict().get("unit")):
                continue
            if any(c.isdigit() or c == "\\" for c in core[: found.start()]):
                core, unit, power = core[: found.start()], name or "degree", _power(found.group())
                break
    if (found := _AFTER_CONSTANT.search(core)) and not _VARIABLE.search(core, 0, found.start()):
        core, unit, power = core[: found.start()], found["unit"] or "m", _power(found.group())
    core = core.strip()
    return Measured(core, _canonical(unit), percent, power) if core else Measured(text)


def _is_unit(text: str | None) -> bool:
    """Whether the words after a number do not change it."""
    return _NO_UNIT.search(_EXPONENT.sub("", text or "")) is None


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
    for name in (word, word.removesuffix("s"), word.removesuffix("es")):
        if name in _CANONICAL:
            return _CANONICAL[name]
    return ""


def _power(unit: str) -> str:
    """The exponent of a unit; empty where there is none."""
    found = re.search(r"\^\s*\{?(-?\d)\}?\s*$", unit)
    return found[1] if found else ""


def units_differ(first: Measured, second: Measured) -> bool:
    """Whether both sides have known units and these, or their exponents, differ."""
    if not (first.unit and second.unit):
        return False
    return first.unit != second.unit or bool(first.power and second.power and first.power != second.power)


def quantities_agree(gold: Measured, prediction: Measured) -> bool | None:
    """Compare two numbers, ignoring units; None where one is not a number, or may mean something else."""
    target, readings = read_number(gold.core), _readings(prediction.core)
    if target is None or not readings:
        return None
    if any(agree_in_percent(target, number, gold.percent, prediction.percent) for number in readings):
        return not units_differ(gold, prediction)
    return None if "," in gold.core and "," in prediction.core else False


def agree_in_percent(gold: Number, prediction: Number, gold_percent: bool, prediction_percent: bool) -> bool:
    """Compare two numbers of which one or both carry a percent sign."""
    if numbers_agree(gold, prediction):
        return True
    if gold_percent == prediction_percent:
        return False
    return numbers_agree(hundredth(gold), prediction) if gold_percent else numbers_agree(gold, hundredth(prediction))


def hundredth(number: Number) -> Number:
    """A hundredth of the number."""
    places = None if number.places is None else number.places + 2
    return Number(number.value / Fraction(100), places, number.significant)


def _readings(core: str) -> list[Number]:
    """The numbers that a text may mean; the comma of `3,5` may be a decimal one in predictions only."""
    found = (read_number(core), read_decimal_comma(core))
    return [number for number in found if number is not None]
