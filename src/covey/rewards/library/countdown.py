"""The countdown game: reach a target with given numbers and the four operations. Parsed, never passed to `eval`.

The grammar, with exact fractions for values:

    sum     = product { ("+" | "-") product }
    product = signed { ("*" | "/") signed }
    signed  = [ "+" | "-" ] signed | number | "(" sum ")"
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from covey.answers import Outcome, extract_answer_tag, extract_boxed
from covey.rewards.reward import Graded, gold_value
from covey.rewards.settings import RewardSettings

_MAX_LENGTH = 1000  # characters of an expression
_MAX_DEPTH = 100  # parentheses and signs within each other
_TOKEN = re.compile(r"\s*(?:(\d{1,18}(?:\.\d{1,18})?)(?![\d.])|([-+*/()]))", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?", re.ASCII)
_SIGNS = str.maketrans(
    {
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{MIDDLE DOT}": "*",
        "\N{DOT OPERATOR}": "*",
        "\N{ASTERISK OPERATOR}": "*",
        "\N{DIVISION SIGN}": "/",
        "\N{DIVISION SLASH}": "/",
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
    }
)
_LATEX = {r"\times": "*", r"\cdot": "*", r"\div": "/", r"\left": "", r"\right": "", "$": ""}


def countdown(text: str, row: Mapping[str, Any], settings: RewardSettings) -> Graded:
    r"""1 where the completion's expression uses every given number exactly once and equals the target, else 0.

    The expression is the content of the last `<answer>…</answer>`, or else of the last `\boxed{…}`: the given numbers,
    + - * / (or × ÷ −), signs and parentheses. An `= target` at its end is allowed if it is true. Values are exact
    fractions, so `8 / (3 - 8 / 3)` is 24. Anything else, names and powers among it, cannot be read and scores 0.

    The gold answer is `{"numbers": [3, 3, 8, 8], "target": 24}`, as JSON or as a mapping; any right expression counts.

    Range: 0 or 1, None where the gold answer cannot be read. Source: TinyZero's countdown task, without its 0.1 for a
    wrong answer in the right format (`format` rewards that).
    """
    task = read_task(gold_value(row))
    if task is None:
        return Graded(None, Outcome.UNPARSABLE_GOLD)
    numbers, target = task
    expression = extract_answer_tag(text, settings.tags.answer) or extract_boxed(text)
    if expression is None:
        return Graded(0.0, Outcome.UNPARSABLE_PREDICTION)
    try:
        value, used, stated = evaluate(expression)
    except UnreadableExpressionError:
        return Graded(0.0, Outcome.UNPARSABLE_PREDICTION)
    except ZeroDivisionError:
        return Graded(0.0, Outcome.WRONG)
    right = value == target and stated in (None, target) and Counter(used) == Counter(numbers)
    return Graded(1.0, Outcome.RIGHT) if right else Graded(0.0, Outcome.WRONG)


class UnreadableExpressionError(ValueError):
    """The text is not arithmetic that countdown allows, or is too long."""


def evaluate(expression: str) -> tuple[Fraction, list[Fraction], Fraction | None]:
    """The value of an arithmetic expression, its numbers from left to right, and the value after its equals sign.

    Raises:
        UnreadableExpressionError: it is not arithmetic, or longer than 1000 characters.
        ZeroDivisionError: it divides by zero.
    """
    if len(expression) > _MAX_LENGTH:
        raise UnreadableExpressionError
    plain = expression.translate(_SIGNS)
    for mark, meant in _LATEX.items():
        plain = plain.replace(mark, meant)
    formula, equals, right = plain.partition("=")
    parser = _Parser(formula)
    value = parser.whole()
    if not equals:
        return value, parser.numbers, None
    if not _NUMBER.fullmatch(stated := right.strip().removesuffix(".")):
        raise UnreadableExpressionError
    return value, parser.numbers, Fraction(stated)


def read_task(gold: Any) -> tuple[list[Fraction], Fraction] | None:
    """The numbers and the target of a gold answer; None where it has another format."""
    if isinstance(gold, str):
        try:
            gold = json.loads(gold)
        except ValueError:
            return None
    if not isinstance(gold, Mapping) or not isinstance(gold.get("numbers"), list | tuple):
        return None
    values = [_exact(value) for value in (*gold["numbers"], gold.get("target"))]
    known = [value for value in values if value is not None]
    return (known[:-1], known[-1]) if len(known) == len(values) > 1 else None


def _exact(value: Any) -> Fraction | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool) and _NUMBER.fullmatch(str(value))
    return Fraction(str(value)) if plain else None


class _Parser:
    """Reads one expression from left to right, one method for each rule of the grammar."""

    def __init__(self, formula: str) -> None:
        self._tokens = _tokens(formula)
        self._next = 0
        self._depth = 0
        self.numbers: list[Fraction] = []

    def whole(self) -> Fraction:
        value = self._sum()
        if self._peek() is not None:
            raise UnreadableExpressionError
        return value

    def _sum(self) -> Fraction:
        value = self._product()
        while (operator := self._peek()) in ("+", "-"):
            self._next += 1
            other = self._product()
            value = value + other if operator == "+" else value - other
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while (operator := self._peek()) in ("*", "/"):
            self._next += 1
            other = self._signed()
            value = value * other if operator == "*" else value / other
        return value

    def _signed(self) -> Fraction:
        token = self._peek()
        self._next += 1
        if isinstance(token, Fraction):
            self.numbers.append(token)
            return token
        self._depth += 1
        if token is None or token not in "+-(" or self._depth > _MAX_DEPTH:
            raise UnreadableExpressionError
        if token == "(":
            value = self._sum()
            if self._peek() != ")":
                raise UnreadableExpressionError
            self._next += 1
        else:
            value = self._signed() if token == "+" else -self._signed()
        self._depth -= 1
        return value

    def _peek(self) -> Fraction | str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None


def _tokens(formula: str) -> list[Fraction | str]:
    found: list[Fraction | str] = []
    formula = formula.strip()
    position = 0
    while position < len(formula):
        token = _TOKEN.match(formula, position)
        if token is None:
            raise UnreadableExpressionError
        number, sign = token.groups()
        found.append(Fraction(number) if number else sign)
        position = token.end()
    return found
