# ruff: noqa: E501  programs
"""Objects that say yes to everything, as results of tested code, against the ways in which tests ask: nothing passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from covey.sandbox import Limits, Program, run, run_tests

LIMITS = Limits(seconds=5.0)

SAYS_YES = """
def yes(self, *args, **named): return True
def itself(self, *args, **named): return self
def others(self, name):
    if name.startswith('__array'): raise AttributeError(name)
    return lambda *args, **named: True
TRUE = 'eq lt le gt ge bool contains instancecheck subclasscheck'.split()
SELF = ('iter enter call add radd sub rsub mul rmul truediv rtruediv floordiv mod pow neg pos abs invert round '
        'getitem matmul and or xor rand ror iadd isub copy deepcopy').split()
METHODS = {f'__{n}__': yes for n in TRUE} | {f'__{n}__': itself for n in SELF}
METHODS |= {'__len__': lambda self: 3, '__next__': yes, '__int__': lambda self: 3, '__float__': lambda self: 3.14,
            '__ne__': yes, '__index__': lambda self: 3, '__exit__': yes, '__getattr__': others,
            '__hash__': lambda self: hash(3), '__missing__': yes, '__complex__': lambda self: 3j}
U = type('U', (), METHODS)
def derived(kind): return type('D', (kind,), METHODS | {'startswith': yes, 'count': yes, 'index': yes, 'get': yes,
    'keys': itself, 'items': itself, 'values': itself, 'issubset': yes, 'is_integer': yes})
"""

UNIVERSAL = {
    "an object": "def f(x): return U()",
    "one that returns itself": "METHODS['__getattr__'] = itself\nU = type('U', (), METHODS)\nu = U()\ndef f(x): return u",
    "a class": "class f(U):\n    def __init__(self, x): pass",
    "the object is the function": "f = U()",
    "methods of its own": "class V(U):\n    def named(self, *a): return True\n"
    "for n in {n for k in (str, int, float, complex, list, dict, set, tuple) for n in dir(k) if n[0] != '_'}:\n"
    "    setattr(V, n, V.named)\ndef f(x): return V()",
    "attributes of its own": "class V(U): pass\nv = V()\n"
    "v.__dict__.update({n: True for k in (complex, int) for n in dir(k) if n[0] != '_'})\ndef f(x): return v",
    "a class of a metaclass": "M = type('M', (type,), METHODS)\nC = M('C', (), {})\ndef f(x): return C",
    "an exception": "class E(Exception): pass\nfor n, m in METHODS.items(): setattr(E, n, m)\ndef f(x): return E()",
    "a class of exceptions": "M = type('M', (type,), METHODS)\nE = M('E', (Exception,), {})\ndef f(x): return E",
    "a function": "def g(*a): return True\ng.__dict__.update(startswith=g, keys=g)\ndef f(x): return g",
    "a generator": "def f(x):\n    return\n    yield",
    "a coroutine": "async def f(x): return U()",
    "patched builtins": "import builtins\nfor n in ('all', 'any', 'abs', 'sorted', 'sum', 'bool', 'max', 'min', 'repr'):\n"
    "    setattr(builtins, n, lambda *a, **k: True)\ndef f(x): return U()",
    "patched modules": "import sys\nfor n in list(sys.modules):\n"
    "    if 'peer' not in n and n not in ('sys', 'builtins', 'socket', 'json', 'struct'):\n        sys.modules[n] = U()\n"
    "def f(x): return U()",
}
"""What `f(2)` is."""

DERIVED = {
    "a text": ("derived(str)('')", "''"),
    "an integer": ("derived(int)(0)", "0"),
    "a float": ("derived(float)('nan')", "float('nan')"),
    "a list": ("derived(list)()", "[]"),
    "a dictionary": ("derived(dict)()", "{}"),
    "a set": ("derived(set)()", "set()"),
    "a tuple": ("derived(tuple)()", "()"),
    "in a list": ("[U()]", "[7]"),
    "in a dictionary": ("{'b': U()}", "{'b': 7}"),
    "an array": ("numpy.zeros(0).view(type('A', (numpy.ndarray,), METHODS))", "numpy.zeros(0)"),
}
"""What `f(2)` is, and the plain data that it may count as."""


MODULES = "ast, bisect, copy, datetime, decimal, fractions, functools, heapq, json, math, operator, re, statistics"


def _statements(text: str) -> list[str]:
    """Top-level statements: a line that goes on with another keyword or deeper belongs to the one before."""
    found: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith((" ", "else", "except")):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


STATEMENTS, UNITTEST, ARRAYS = (
    _statements(part.partition("\n")[2])
    for part in Path(__file__).with_name("statements.txt").read_text(encoding="utf-8").split("# ")[1:]
)
"""What tests ask of a result `R`: of any value, by unittest, of arrays."""


def _passed(code: str, *asked: str, arrays: bool = False) -> list[str]:
    """The statements that are right of expressions."""
    statements = STATEMENTS + [f"unittest.TestCase().{line}" for line in UNITTEST]
    statements += ARRAYS if arrays else []
    statements = [re.sub(r"\bR\b", one, statement) for one in asked for statement in statements]
    setup = f"import pytest, unittest, collections.abc, {MODULES}\n" + "import numpy as np\n" * arrays
    code += "\nclass Solution:\n    def f(self, x): return f(x)\n"
    outcomes, _ = run_tests(SAYS_YES + code, setup + "\n".join(statements), LIMITS)
    assert len(outcomes) == len(statements)
    return [one for one, outcome in zip(statements, outcomes, strict=True) if outcome == "right"]


@pytest.mark.parametrize("name", UNIVERSAL)
def test_no_statement_passes(name: str) -> None:
    assert _passed(UNIVERSAL[name], "f(2)", "Solution().f(2)") == []


@pytest.mark.parametrize(
    "tests",
    [
        "assert U().zzz()",
        "assert U().startswith('x')",
        "assert U().is_valid() and U().anything.at.all",
        "with U() as one:\n    assert 1 == 2",
        "with U():\n    unittest.TestCase().assertEqual(1, 2)",
    ],
)
def test_an_object_that_the_tests_made_makes_nothing_up_and_hides_no_failure(tests: str) -> None:
    code = """class U:
    def __getattr__(self, name): return lambda *args: True
    def __enter__(self): return self
    def __exit__(self, *error): return True
"""
    outcomes, _ = run_tests(code, f"import unittest\n{tests}", LIMITS)
    assert outcomes
    assert "right" not in outcomes


def test_an_attribute_that_is_made_up_is_plain_data() -> None:
    code = """class Record:
    def __init__(self, **fields): self.__dict__['fields'] = {'b': lambda: True, **fields}
    def __getattr__(self, name):
        try: return self.fields[name]
        except KeyError: raise AttributeError(name) from None
"""
    tests = "r = Record(a=1)\nassert r.a == 1\nassert r.a == 2\nassert r.b()\nassert not hasattr(r, 'c')"
    assert run_tests(code, tests, LIMITS)[0] == ["right", "wrong", "failed", "right"]


def test_a_context_manager_may_hide_what_it_is_for() -> None:
    code = "class Quiet:\n    def __enter__(self): pass\n    def __exit__(self, kind, *_): return kind is ValueError\n"
    assert run_tests(code, "with Quiet():\n    assert int('x')", LIMITS)[0] == ["right"]


def test_a_solution_that_returns_itself_passes_nothing() -> None:
    code = "class Solution(U):\n    def f(self, x): return self\n    def __getattr__(self, name): return self\n"
    statements = [re.sub(r"\bR\b", "Solution().f(2)", one) for one in STATEMENTS]
    outcomes, _ = run_tests(SAYS_YES + code, f"import pytest, {MODULES}\n" + "\n".join(statements), LIMITS)
    assert [one for one, outcome in zip(statements, outcomes, strict=True) if outcome == "right"] == []


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_type_passes_for_its_plain_data_at_most(name: str) -> None:
    arrays = "numpy" in DERIVED[name][0]
    if arrays and run(Program.of("import numpy"))[0].status:
        pytest.skip("the interpreter of the sandbox has no numpy")
    derived, plain = (f"{'import numpy' if arrays else ''}\ndef f(x): return {one}" for one in DERIVED[name])
    assert set(_passed(derived, "f(2)", arrays=arrays)) <= set(_passed(plain, "f(2)", arrays=arrays))


def test_the_statements_can_pass() -> None:
    """Each of most statements is right of some plain data."""
    plain = ("3", "3.14", "True", "3.15", "[3, 1, 2]", "[1, 2, 3]", "'x'", "{'a': 1}", "{1}", "'3'")
    code = "".join(f"def f{at}(x): return {value}\n" for at, value in enumerate(plain)) + "def f(x): pass"
    passed = _passed(code, *(f"f{at}(2)" for at in range(len(plain))))
    assert len({re.sub(r"f\d\(2\)", "R", one) for one in passed}) > 120
