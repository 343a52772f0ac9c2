"""Quantities: numbers with units, percent signs, degrees, currencies, and words such as "about" and "dollars".

The policy: a unit that only one side writes does not matter; two known units that differ are two answers. A percent
sign that only one side writes may mean the number itself or a hundredth of it. A single letter is a unit if it is
separated from its number (`12 m`) or set upright; `12m` is a product.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from covey.answers.maths.latex import UNIT_SYMBOLS
from covey.answers.maths.numbers import SCALE, Number, numbers_agree, read_decimal_comma, read_number

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
_POWER = r"(?:\s*\^\s*\{?-?\d\}?)?"
_COUNTED = re.compile(  # `12 red eggs`, `12 eggs/day`, `12 m^2`, `12 kg m/s`, `2 million people`
    rf"(?P<number>[-+]?[\d.,/]*\d(?:\s+{SCALE})?)(?:\s+(?P<unit>[a-zA-Z]+{_POWER}"
    rf"(?:(?:[\s-]+|\s*(?:/|\\cdot)\s*)[a-zA-Z]+{_POWER}){{0,4}})|/\s*(?P<each>[a-zA-Z]{{3,}}))\s*$"
)
_AFTER_CONSTANT = re.compile(rf"(?:(?<=[\d}})])\s+(?P<unit>{_SYMBOL}){_POWER}|(?<=\\pi)\s+m\s*\^\s*\{{?[23]\}}?)\s*$")
_SYMBOL_LAST = re.compile(rf"\s{_SYMBOL}{_POWER}\s*$")
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
    core, unit, percent, power = _LEADING.sub("", text), "", False, ""
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


def quantities_agree(gold: Measured, prediction: Measured) -> bool | None:
    """Compare two numbers, ignoring units; None where one is not a number, or may mean something else."""
    target, *readings = read_number(gold.core), read_number(prediction.core), read_decimal_comma(prediction.core)
    numbers = [number for number in readings if number is not None]
    if target is None or not numbers:
        return None
    if any(agree_in_percent(target, number, gold.percent, prediction.percent) for number in numbers):
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
