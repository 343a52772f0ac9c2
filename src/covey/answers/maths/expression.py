r"""Parsing mathematics without evaluating it: a recursive-descent parser from tidied LaTeX to a tree.

The parser is strict. Numbers are exact, letters are variables, and a command that is not listed here either makes the
text unreadable or, where it is known notation without a value that Covey computes (`\sum`, `\lim`, `\infty`), becomes a
node that `covey.answers.maths.value` refuses. The size of a tree is bounded by the length and depth of its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_MAX_LENGTH = 500
_MAX_DEPTH = 40
_MAX_HEIGHT = 100


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """A number, a variable, a constant, or an operation on other nodes."""

    op: str
    """`number`, `variable`, `constant`, `valueless`, an operator (`add`, `mul`, `div`, `neg`, `pow`), `matrix`, or the
    name of a function."""
    args: tuple[Node, ...] = ()
    value: Fraction | str | tuple[int, ...] = ""
    """A number's value, the name of a variable or constant, a matrix's shape."""

    def __repr__(self) -> str:  # decimals of huge numbers take quadratic time, and Python refuses them
        ratio = map(hex, self.value.as_integer_ratio()) if isinstance(self.value, Fraction) else [self.value]
        return f"{self.op} {[*ratio]} {self.args}"


class _UnreadableError(ValueError):
    """The text is not an expression."""


TRIGONOMETRY = ("sin", "cos", "tan", "cot", "sec", "csc")
_INVERSE = tuple("a" + name for name in TRIGONOMETRY)
_HYPERBOLIC = ("sinh", "cosh", "tanh")
_ONE_ARGUMENT = frozenset((*TRIGONOMETRY, *_INVERSE, *_HYPERBOLIC, "asinh", "acosh", "atanh", "ln", "log", "exp"))
_SEVERAL_ARGUMENTS = frozenset(("max", "min", "gcd", "lcm"))
_GREEK = re.compile(
    "alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|iota|kappa|lambda|mu|nu|xi|(?:var)?rho|sigma|tau|upsilon"
    "|(?:var)?phi|chi|psi|omega|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega|hbar|ell|angle|triangle|emptyset"
)
_ACCENTS = re.compile("overline|bar|d?dot|vec|hat|tilde|widehat|widetilde|overrightarrow|math(?:bb|cal|frak|scr)|text")
_VALUELESS = re.compile(
    "infty|sum|(?:co)?prod|i{1,3}nt|oint|lim(?:sup|inf)?|sup|inf|Gamma|Beta|det|dim|ker|arg|deg|Re|Im|Pr|partial|nabla"
    "|[lcv]?dots|dots[bc]|aleph|wp|bigcup|bigcap"
)
_DIGITS = frozenset(".0123456789")
_BEFORE_DIGITS = _DIGITS | {"|"}
_OPENING = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_ROUNDING = {r"\lfloor": "floor", r"\lceil": "ceil"}
_PRODUCT = frozenset(("*", r"\cdot", r"\times"))
_ENDS = (
    frozenset(("", ")", "]", "}", "|", "+", "-", "/", ",", "!", "^", "_", "&", r"\\", r"\choose", r"\end", r"\%", "%"))
    | {r"\rfloor", r"\rceil", r"\bmod", r"\mod"}
    | _PRODUCT
)

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:E[+-]?\d+|e(?:\d+|[+-]\d\d+))?)|(?P<command>\\[a-zA-Z]+|\\.)|(?P<other>.))",
    re.ASCII | re.DOTALL,
)
_PROSE = re.compile(r"(?<![\\a-zA-Z{])[a-zA-Z]{2,}\s+[a-zA-Z]{2,}(?![a-zA-Z])")  # would be read as a product
_DEGREE = re.compile(r"(\d+(?:\.\d+)?|(?<![a-zA-Z])[a-zA-Z]|)\s*\^\\circ\s*")
_TRIGONOMETRIC = re.compile(rf"\\(?:{'|'.join(TRIGONOMETRY)})(?![a-zA-Z])")
_SUBSCRIPT_NOISE = re.compile(r"[\s{}]|\\text(?![a-zA-Z])")


@lru_cache(maxsize=4096)
def parse(text: str) -> Node | None:
    """Parse a tidied text in linear time; None if it is not an expression, or too long or deep."""
    if not text or len(text) > _MAX_LENGTH or _PROSE.search(text):
        return None
    text = _DEGREE.sub(r"(\\frac{\1\\pi}{180})" if _TRIGONOMETRIC.search(text) else r"\1", text)
    try:
        found = _Parser(text).whole()
    except _UnreadableError:
        return None
    level, height = [found], 0
    while level:  # the parser limits brackets; `1!!!…` and `1/1/1…` grow without any
        level, height = [part for node in level for part in node.args], height + 1
    return found if height <= _MAX_HEIGHT else None


class _Parser:
    """One pass over the tokens, one method per level of precedence."""

    def __init__(self, text: str) -> None:
        self._text = text
        found = [match for match in _TOKEN.finditer(text) if match.lastgroup]
        self._tokens = [match[match.lastgroup or 0] for match in found] + [""]
        self._starts = [match.start(match.lastgroup or 0) for match in found] + [len(text)]
        self._at = 0
        self._depth = 0
        self._bars = 0  # how many absolute values are open in the innermost bracket

    @property
    def _next(self) -> str:
        return self._tokens[self._at]

    def _take(self) -> str:
        token = self._tokens[self._at]
        if token:
            self._at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise _UnreadableError

    def whole(self) -> Node:
        found = self._sum()
        if self._next:
            raise _UnreadableError
        return found

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _UnreadableError
        terms = [self._product()]
        while self._next in ("+", "-"):
            sign = self._take()
            term = self._product()
            terms.append(term if sign == "+" else Node("neg", (term,)))
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def _product(self) -> Node:
        """Factors between explicit operators; juxtaposition binds more tightly, so `1/2x` is `1/(2x)`."""
        found = self._signed()
        while True:
            if self._next in _PRODUCT:
                self._take()
                found = Node("mul", (found, self._signed()))
            elif self._next == "/":
                self._take()
                found = Node("div", (found, self._signed()))
            elif self._next in (r"\bmod", r"\mod"):
                self._take()
                found = Node("mod", (found, self._signed()))
            else:
                return found

    def _signed(self) -> Node:
        negative = False
        while self._next in ("+", "-"):
            negative ^= self._take() == "-"
        found = self._juxtaposed(lambda: self._begins_factor())
        return Node("neg", (found,)) if negative else found

    def _begins_factor(self) -> bool:
        return self._next not in _ENDS or (self._next == "|" and not self._bars)

    def _juxtaposed(self, goes_on: Callable[[], bool]) -> Node:
        begin = self._at
        factors = [self._powered()]
        while goes_on():
            after_digits = self._next[0] in _DIGITS and self._tokens[self._at - 1][0] in _BEFORE_DIGITS
            if after_digits and (factors[-1].op != "pow" or self._tokens[self._at + 1] != "^"):  # `1 2`, not `2^6 3^5`
                raise _UnreadableError
            factors.append(self._powered())
        if len(factors) > 1 and factors[0] == constant(0):  # 0x48
            raise _UnreadableError
        mixed = len(factors) > 1 and is_whole(factors[0]) and self._tokens[begin + 1] == r"\frac"
        if mixed and factors[1].op == "div" and all(is_whole(part) and part.value for part in factors[1].args):
            factors[:2] = [Node("add", tuple(factors[:2]))]  # 2\frac{1}{2}
        return factors[0] if len(factors) == 1 else Node("mul", tuple(factors))

    def _powered(self) -> Node:
        found = self._atom()
        while self._next in ("^", "!", "%", r"\%", "'"):
            mark = self._take()
            if mark == "!":
                found = Node("factorial", (found,))
            elif mark in ("%", r"\%"):
                found = Node("div", (found, constant(100)))
            elif mark == "'" or self._next in ("'", r"\prime"):
                raise _UnreadableError
            else:
                found = Node("pow", (found, self._argument()))
                if self._next == "^":  # 2^3^4
                    raise _UnreadableError
        return found

    def _argument(self) -> Node:
        """The argument of `^` or `\\frac`: a group in braces, or one atom, perhaps with a sign."""
        if self._next in ("+", "-"):
            sign = self._take()
            found = self._atom()
            return found if sign == "+" else Node("neg", (found,))
        return self._atom()

    def _atom(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _UnreadableError
        token = self._take()
        if not token or token in _ENDS - {"|"}:
            raise _UnreadableError
        if token[0] in _DIGITS:
            found = self._literal(token)
        elif token in _OPENING:
            found = self._group(token)
        elif token == "|":
            self._bars += 1
            found = Node("abs", (self._sum(),))
            self._expect("|")
            self._bars -= 1
        elif token[0] == "\\":
            found = self._command(token[1:])
        elif token.isalpha() and token.isascii():
            name = token + self._decoration()
            found = Node("constant" if name in ("e", "i") else "variable", value=name)
        else:
            raise _UnreadableError
        self._depth -= 1
        return found

    def _literal(self, token: str) -> Node:
        if self._next == "_":  # in another base
            return Node("valueless", value=token + self._scripts())
        mantissa, _, exponent = token.lower().partition("e")
        if len(exponent) > 4:
            raise _UnreadableError
        return Node("number", value=Fraction("0" + mantissa.rstrip(".")) * Fraction(10) ** int(exponent or 0))

    def _group(self, opening: str) -> Node:
        bars, self._bars = self._bars, 0
        found = self._sum()
        if opening == "{" and self._next == r"\choose":
            self._take()
            found = Node("binom", (found, self._sum()))
        self._expect(_OPENING[opening])
        self._bars = bars
        return Node(_ROUNDING[opening], (found,)) if opening in _ROUNDING else found

    def _decoration(self) -> str:
        """The subscript and the primes of a name, normalised."""
        found = ""
        while self._next in ("_", "'") or (
            self._next == "^" and r"\prime" in self._tokens[self._at + 1 : self._at + 3]
        ):
            mark = self._take()
            if mark == "'":
                found += "'"
                continue
            content = _SUBSCRIPT_NOISE.sub("", self._raw_argument())
            found += "_" + content if mark == "_" else content.replace(r"\prime", "'")
        return found

    def _raw_argument(self) -> str:
        """The text of a group in braces, or of one token."""
        begin, depth = self._at, 0
        while token := self._take():
            depth += {"{": 1, "}": -1}.get(token, 0)
            if depth <= 0:
                return self._text[self._starts[begin] : self._starts[self._at]].strip()
        raise _UnreadableError

    def _command(self, name: str) -> Node:
        if name == "frac":
            return Node("div", (self._argument(), self._argument()))
        if name == "sqrt":
            return self._root()
        if name in ("binom", "dbinom", "tbinom"):
            return Node("binom", (self._argument(), self._argument()))
        if name == "begin":
            return self._matrix()
        if name.removeprefix("arc") in TRIGONOMETRY + _HYPERBOLIC and name.startswith("arc"):
            name = "a" + name.removeprefix("arc")
        if name in _ONE_ARGUMENT:
            return self._function(name)
        if name in _SEVERAL_ARGUMENTS:
            return self._listed(name)
        if name == "pi":
            return Node("constant", value="pi")
        if _VALUELESS.fullmatch(name):
            return Node("valueless", value=name + self._scripts())
        if _ACCENTS.fullmatch(name):
            name += "{" + _SUBSCRIPT_NOISE.sub("", self._raw_argument()) + "}"
        elif not _GREEK.fullmatch(name):
            raise _UnreadableError
        return Node("variable", value="\\" + name + self._decoration())

    def _scripts(self) -> str:
        found = ""
        while self._next in ("_", "^"):
            found += self._take() + self._raw_argument()
        return found

    def _root(self) -> Node:
        if self._next != "[":
            return Node("root", (self._argument(), constant(2)))
        self._take()
        degree = self._sum()
        self._expect("]")
        return Node("root", (self._argument(), degree))

    def _function(self, name: str) -> Node:
        base: tuple[Node, ...] = ()
        power: Node | None = None
        while self._next in ("_", "^"):
            mark = self._take()
            if mark == "^":
                power = self._argument()
            elif name == "log":
                base = (self._argument(),)
            else:
                raise _UnreadableError
        if power == Node("neg", (constant(1),)) and name in TRIGONOMETRY:
            name, power = "a" + name, None
        if self._next in ("(", "{", "["):
            argument = self._group(self._take())
        else:
            argument = self._juxtaposed(self._function_argument_goes_on)
            if name in TRIGONOMETRY and self._next == "/":  # \sin \pi/6
                self._take()
                argument = Node("div", (argument, self._powered()))
        found = Node(name, (argument, *base))
        return found if power is None else Node("pow", (found, power))

    def _function_argument_goes_on(self) -> bool:
        if not self._begins_factor() or self._next == "|":
            return False
        if self._next == "(":
            return self._tokens[self._at - 1][-1:].isdigit()  # \sin 2(x+1), but \cos x(1+\sin x)
        return self._next[1:] not in _ONE_ARGUMENT | _SEVERAL_ARGUMENTS and not self._next.startswith(r"\arc")

    def _listed(self, name: str) -> Node:
        opening = self._take()
        if opening == "\\{":
            opening = "{"
        if opening not in ("(", "[", "{"):
            raise _UnreadableError
        bars, self._bars = self._bars, 0
        items = [self._sum()]
        while self._next == ",":
            self._take()
            items.append(self._sum())
        self._bars = bars
        if self._take() not in (_OPENING[opening], r"\}"):
            raise _UnreadableError
        return Node(name, tuple(items))

    def _matrix(self) -> Node:
        kind = self._raw_argument()
        rows = [[self._sum()]]
        while self._next in ("&", r"\\"):
            if self._take() == "&":
                rows[-1].append(self._sum())
            elif self._next != r"\end":
                rows.append([self._sum()])
        self._expect(r"\end")
        if (
            self._raw_argument() != kind
            or "matrix" not in kind
            or kind[0] in "vV"
            or len({len(row) for row in rows}) > 1
        ):
            raise _UnreadableError
        return Node("matrix", tuple(cell for row in rows for cell in row), (len(rows), len(rows[0])))


def constant(value: Fraction | int) -> Node:
    """A number as an expression."""
    return Node("number", value=Fraction(value))


def is_whole(node: Node) -> bool:
    """Whether an expression is a whole number without a sign."""
    return isinstance(node.value, Fraction) and node.value.denominator == 1


def unsigned(node: Node) -> Node:
    """An expression without its signs."""
    return unsigned(node.args[0]) if node.op == "neg" else node


def variables(node: Node) -> frozenset[str]:
    """The names of an expression's variables."""
    if node.op == "variable":
        return frozenset((str(node.value),))
    return frozenset(name for part in node.args for name in variables(part))


def uses_imaginary_unit(node: Node) -> bool:
    """Whether `i` occurs in an expression."""
    return (node.op == "constant" and node.value == "i") or any(uses_imaginary_unit(part) for part in node.args)
