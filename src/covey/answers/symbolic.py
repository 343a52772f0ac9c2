"""Expressions: read by math-verify's LaTeX parser, compared in numbers where that settles it, else by math-verify.

Nothing is evaluated before its size is known. What a text costs grows with its length and depth, so both are bounded
before the parser sees it; what an expression costs grows with its numbers (`9^{9^{9^9}}`), so they are bounded before
anything is computed. Larger ones are compared as texts. There is no timer here: the caller has deadlines of its own.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from covey.answers.numbers import Number

_MAX_LENGTH = 500
_MAX_DEPTH = 10
_MAX_NODES = 250
_MAX_DIGITS = 20_000  # of a number while it is computed
_POINTS = ((0.62, 1.37, 2.21), (1.71, 0.43, 3.13), (-0.83, 1.19, -2.47), (2.59, -1.63, 0.37))
_SAME = 1e-10
_LARGEST_FLOAT = 10**300
_DIGIT_RUN = re.compile(r"\d{60}", re.ASCII)
_LARGE_BINOMIAL = re.compile(  # the parser computes these at once
    r"\\(?:[dt]?binom|choose|gcd|lcm|operatorname|det)(?![a-zA-Z]).*\d{4}", re.ASCII | re.DOTALL
)
_WORDS = re.compile(
    r"(?<![\\a-zA-Z])[a-zA-Z]{2,}\s+[a-zA-Z]{2,}(?![a-zA-Z])"
)  # prose, which would be read as a product
_COMPLEX = re.compile(
    r"(?<![a-zA-Z\\])i(?![a-zA-Z])|(?<=\d)i(?![a-zA-Z])|\\imath|\\mathbb\{C\}|\\operatorname\{(?:Re|Im)\}|\\arg"
)
_DEGREE = re.compile(r"(\d+(?:\.\d+)?|(?<![a-zA-Z])[a-zA-Z]|)\s*\^\\circ\s*")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_PERCENT = re.compile(r"\\?%")


def read(text: str, partner: str = "") -> Any:
    """The sympy object that a tidied text describes; None where it describes none, or is too large to look at.

    Args:
        partner: the text that it will be compared with: where either has an imaginary unit, both are complex.
    """
    return _parse(text, _COMPLEX.search(text) is None and _COMPLEX.search(partner) is None)


@lru_cache(maxsize=4096)
def _parse(text: str, real: bool) -> Any:
    if not text or len(text) > _MAX_LENGTH or _depth(text) > _MAX_DEPTH or _WORDS.search(text):
        return None
    if _DIGIT_RUN.search(text) or _LARGE_BINOMIAL.search(text):
        return None
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex

    text = _DEGREE.sub(r"(\\frac{\1\\pi}{180})" if _TRIGONOMETRY.search(text) else r"\1", text)
    text = _PERCENT.sub(r"\\cdot\\frac{1}{100} ", text)
    config = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none")
    try:
        found = latex2sympy(
            normalize_latex(text, config), is_real=real, convert_degrees=False, normalization_config=None
        )
    except MemoryError:
        raise
    except Exception:  # the parser's own word for "this is no mathematics" is a plain Exception
        return None
    if not _is_small(found):
        return None
    return found if real else _with_imaginary_unit(found)


def _with_imaginary_unit(found: Any) -> Any:
    """The parser takes `i` for a variable."""
    import sympy

    if not isinstance(found, sympy.Expr) or not _is_computable(found):
        return found
    return found.xreplace({symbol: sympy.I for symbol in found.free_symbols if symbol.name == "i"})


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(character, 0)
        deepest = max(deepest, depth)
    return deepest


def expressions_agree(gold: Any, prediction: Any) -> bool:
    """Whether two sympy objects are equal: in numbers, at several points if they have variables, or by math-verify."""
    import sympy
    from sympy.core.relational import Relational

    if isinstance(gold, sympy.Expr) and isinstance(prediction, sympy.Expr):
        if gold == prediction:
            return True
        if not (_is_computable(gold) and _is_computable(prediction)):
            return False
        verdict = _agree_in_numbers(gold, prediction)
        if verdict is not None:
            return verdict
    if isinstance(gold, Relational) and isinstance(prediction, Relational):
        return _relations_agree(gold, prediction)
    return _verify(gold, prediction)


def _relations_agree(gold: Any, prediction: Any) -> bool:
    """Whether two (in)equalities say the same: `left - right` differ by a constant factor, whose sign turns them."""
    first, second = _SIGNS.get(gold.rel_op), _SIGNS.get(prediction.rel_op)
    ratio = _ratio((gold.lhs, gold.rhs), (prediction.lhs, prediction.rhs))
    if ratio is None or first is None or second is None or first[0] != second[0]:
        return False
    return first[1] == 0 or (ratio.real > 0) == (first[1] == second[1])


_SIGNS = {
    "<": ("strict", -1),
    ">": ("strict", 1),
    "<=": ("weak", -1),
    ">=": ("weak", 1),
    "==": ("=", 0),
    "!=": ("!", 0),
}


def equations_agree(gold: tuple[Any, Any], prediction: tuple[Any, Any]) -> bool:
    """Whether two equations, each as its two sides, say the same: `left - right` differ by a constant factor."""
    return _ratio(gold, prediction) is not None


def _ratio(gold: tuple[Any, Any], prediction: tuple[Any, Any]) -> complex | None:
    """What `left - right` of one relation is times that of another, if that is the same everywhere and not zero."""
    import sympy

    if not all(isinstance(side, sympy.Expr) and _is_computable(side) for side in (*gold, *prediction)):
        return None
    first, second = gold[0] - gold[1], prediction[0] - prediction[1]
    if first.free_symbols != second.free_symbols or not first.free_symbols:
        return None
    symbols = sorted(first.free_symbols, key=str)
    pairs = [pair for pair in (_values((first, second), symbols, point) for point in _POINTS) if pair is not None]
    ratios = [a / b for a, b in pairs if abs(b) > _SAME]
    constant = len(ratios) >= 2 and abs(ratios[0]) > _SAME and all(_close(ratio, ratios[0]) for ratio in ratios)
    return ratios[0] if constant else None


def matches_decimal(expression: Any, number: Number) -> bool | None:
    """Whether a constant is a number written as a decimal, in the precision in which that was written.

    None where the expression is no constant, or the number was not written as a decimal.
    """
    import sympy

    if number.places is None or not isinstance(expression, sympy.Expr):
        return None
    if expression.free_symbols or not _is_computable(expression):
        return None
    values = _values((expression,), [], ())
    if values is None or abs(values[0].imag) > _SAME or abs(number.value) > _LARGEST_FLOAT:
        return None
    gap, size = abs(values[0].real - float(number.value)), abs(float(number.value))
    if gap <= 1e-12 * size:
        return True
    rounded = number.significant >= 3 and number.places > 0 and gap <= float(number.half_step) * (1 + 1e-9)
    return rounded or (number.significant > 6 and gap <= 1e-6 * size)


def _agree_in_numbers(gold: Any, prediction: Any) -> bool | None:
    symbols = sorted(gold.free_symbols | prediction.free_symbols, key=str)
    if not symbols:
        return _constants_agree(gold, prediction)
    if gold.free_symbols != prediction.free_symbols and not _may_cancel(gold, prediction):
        return False
    pairs = [pair for pair in (_values((gold, prediction), symbols, point) for point in _POINTS) if pair is not None]
    if len(pairs) < 2:
        return None
    return all(_close(first, second) for first, second in pairs)


def _may_cancel(gold: Any, prediction: Any) -> bool:
    """Whether a variable that one side lacks may be one that drops out of the other, as in `x - x + 1`."""
    return len(gold.free_symbols ^ prediction.free_symbols) < 3


def _constants_agree(gold: Any, prediction: Any) -> bool | None:
    import sympy

    try:
        size = max(abs(sympy.N(gold, 20)), abs(sympy.N(prediction, 20)))
        gap = abs(sympy.N(gold - prediction, 20, maxn=400))
        if not size.is_number or not size.is_finite or not gap.is_number:
            return None
        if gold.has(sympy.Float) or prediction.has(sympy.Float):
            return bool(gap <= size * sympy.Float("1e-6"))
        if size > sympy.Float("1e300"):
            return bool((gold - prediction).doit() == 0)
        return bool(gap <= sympy.Float("1e-50") * min(size, sympy.Integer(1)))
    except (TypeError, ValueError, ArithmeticError, NotImplementedError, AttributeError):
        return None


def _values(expressions: Sequence[Any], symbols: Sequence[Any], point: Sequence[float]) -> tuple[complex, ...] | None:
    """The values of expressions where the symbols have the point's coordinates; None where one has no value there."""
    at = {symbol: point[i % len(point)] + i // len(point) for i, symbol in enumerate(symbols)}
    values = []
    for expression in expressions:
        try:
            value = complex(expression.evalf(20, subs=at))
        except (TypeError, ValueError, ArithmeticError, NotImplementedError, AttributeError):
            return None
        if not (math.isfinite(value.real) and math.isfinite(value.imag)):
            return None
        if abs(value.imag) > _SAME * (1 + abs(value)) and all(symbol.is_real for symbol in symbols) and symbols:
            return None  # outside of a real function's domain
        values.append(value)
    return tuple(values)


def _close(first: complex, second: complex) -> bool:
    return abs(first - second) <= _SAME * max(1e-30, abs(first), abs(second))


def _verify(gold: Any, prediction: Any) -> bool:
    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own timer is off; it has to be
    return bool(verify(gold, prediction, allow_set_relation_comp=True, timeout_seconds=None))


def _is_small(found: Any) -> bool:
    """Whether an object has few nodes and no number in it grows beyond bounds when it is computed."""
    import sympy

    if isinstance(found, sympy.MatrixBase):
        return len(found) <= 64 and all(_is_small(item) for item in found)
    if not isinstance(found, sympy.Basic):
        return False
    few = all(count < _MAX_NODES for count, _ in enumerate(sympy.preorder_traversal(found)))
    return few and _digits(found) <= _MAX_DIGITS


def _is_computable(expression: Any) -> bool:
    """Whether computing a value of it is a matter of one pass: no sums, limits, integrals or unknown functions."""
    import sympy
    from sympy.core.function import AppliedUndef

    return not expression.has(
        sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative, AppliedUndef, sympy.MatrixExpr
    )


def _digits(node: Any) -> float:
    """An upper bound of the decimal digits of an expression's value; a variable counts as a small number."""
    import sympy

    if isinstance(node, sympy.Rational):
        return 0.302 * (int(node.p).bit_length() + int(node.q).bit_length())
    if not isinstance(node, sympy.Basic) or not node.args:
        return 0.7  # a variable, at the points where it is tried, or a constant
    sizes = [_digits(item) for item in node.args]
    largest = max(sizes)
    if largest > _MAX_DIGITS:
        return math.inf
    if isinstance(node, sympy.Mul):
        return sum(sizes)
    if isinstance(node, sympy.Pow):
        return sizes[0] * _magnitude(node.args[1], sizes[1])
    if isinstance(node, sympy.exp | sympy.cosh | sympy.sinh):
        return 0.5 * _magnitude(node.args[0], sizes[0]) + 2
    if isinstance(node, sympy.factorial | sympy.gamma | sympy.factorial2 | sympy.binomial):
        number = _magnitude(node.args[0], sizes[0])
        return number * max(1.0, math.log10(number + 1)) if number < math.inf else math.inf
    return largest + (math.log10(len(sizes)) if isinstance(node, sympy.Add) else 1)


def _magnitude(node: Any, digits: float) -> float:
    """An upper bound of an exponent's absolute value; at least 1. A constant of moderate size is computed."""
    if digits > 300:
        return math.inf
    if not node.free_symbols and _is_computable(node):
        try:
            value: complex = complex(node.evalf(6))
        except (TypeError, ValueError, ArithmeticError, NotImplementedError):
            return math.inf
        return max(1.0, abs(value))
    return max(1.0, math.pow(10.0, digits))
