# ruff: noqa: E501  programs
"""Objects that say yes to everything, as results of tested code, against the ways in which tests ask: nothing passes."""

from __future__ import annotations

import re

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

STATEMENTS = """
assert R == 3
assert 3 == R
assert R != R
assert [R] == [3]
assert (1, R) == (1, 3)
assert {"a": R} == {"a": 3}
assert R in (3, 4)
assert R in {3}
assert R in {3: 1}
assert not R != 3
assert 3.1 < R < 3.2
assert R > 3
assert 3 < R
assert R >= 3
assert R <= 4 and R >= 3
assert "a" < R
assert R < "b"
assert [1] < R
assert abs(R - 3.14) < 1e-6
assert abs(3.14 - R) < 1e-6
assert math.isclose(R, 3.14)
assert round(R, 2) == 3.14
assert R * 2 == 6.28
assert 2 * R > 6
assert R % 2
assert R // 1 == 3
assert R ** 2 > 9
assert -R < 0
assert int(R) == 3
assert float(R) == 3.14
assert complex(R) == 3j
assert R & 1
assert divmod(R, 2)
assert sum([R, 1]) == 4
assert max(R, 2) == 3
assert min([R, 9]) == 3
assert sorted([R, 3])
assert range(5)[R] == 3
assert "abcd"[R] == "d"
assert R.is_integer()
assert R.real > 0
assert R.numerator
assert R.bit_length()
assert R.conjugate()
assert isinstance(R, bool)
assert isinstance(R, int)
assert isinstance(R, float)
assert isinstance(R, str)
assert isinstance(R, (set, frozenset)) and R
assert isinstance(R, list) and R
assert isinstance(R, collections.abc.Sized) and len(R)
assert type(R) is bool
assert type(R) == int
assert issubclass(type(R), int)
assert 3 in R
assert "a" in R
assert all(x in R for x in (1, 2, 3))
assert any(x == 3 for x in R)
assert len(R) == 3
assert len(R) > 0
assert R
assert bool(R)
assert R and True
assert True if R else False
assert not not R
assert any([R])
assert all([R])
assert [x for x in (1,) if R]
assert list(filter(None, [R]))
assert R is True
assert R == True
assert next(R)
assert next(iter(R))
assert list(R)
assert set(R) == {3}
assert sorted(R) == [1, 2, 3]
assert tuple(R)
assert dict(R)
assert [*R]
assert {**R}
assert sum(R) == 6
assert max(R) == 3
assert all(x > 0 for x in R) and len(R) == 3
assert list(zip(R, "abc"))
assert list(map(str, R))
assert list(enumerate(R))
assert R[0]
assert R[0] == 1
assert R[-1] > 0
assert R[1:] == [2, 3]
assert R["a"] == 1
assert list(reversed(R))
for a, b in [R]: assert a
for a, *b in [R]: assert a
assert R.startswith("x")
assert R.endswith("x")
assert R.isdigit()
assert R.isupper()
assert R.upper() == "X"
assert R.strip()
assert R.find("x") >= 0
assert R.split()
assert R.count("a") == 1
assert R.index("a") == 1
assert R.keys() == {"a"}
assert "a" in R.keys()
assert R.values()
assert R.items()
assert R.get("a")
assert R.pop()
assert R.append(1) is None and len(R) == 1
assert R.issubset({1, 2}) and len(R)
assert R.issuperset({1})
assert R.union({1})
assert {1} <= R
assert {1} | R
assert R | {1}
assert "a" + R
assert R + "a"
assert [1] + R
assert R + [1]
assert R + 1
assert "x" in str(R) + "" and R
assert ",".join(R)
assert R.join(["a", "b"])
assert "%d" % R == "3"
assert f"{R:.2f}" == "3.14"
assert re.match(".", R)
assert re.fullmatch(r"\\d+", R)
assert json.loads(R)
assert json.dumps(R) == "3"
assert ast.literal_eval(R)
assert fractions.Fraction(R) == 3
assert decimal.Decimal(R) > 3
assert R.total_seconds() > 0
assert R.year > 0
assert datetime.date(2020, 1, 1) <= R
assert hash(R) == hash(3)
assert R.__len__()
assert R.__contains__(3)
assert R.__eq__(3) is True
assert R.__lt__(3) is True
assert operator.lt(3, R)
assert operator.contains(R, 3)
assert operator.eq(R, 3)
assert operator.truth(R)
assert R.anything
assert R.anything()
assert R.any_thing.at_all()
assert R.all()
assert R.any()
assert R.tolist()
assert R.shape == (2,)
assert R.ndim
assert R.empty
assert R.equals(3)
assert copy.copy(R)
assert copy.deepcopy(R)
assert bytes(R)
assert math.floor(R) == 3
assert math.sqrt(R) > 1
assert statistics.mean([R, 2])
assert collections.Counter(R)
assert collections.Counter([R]) == {3: 1}
assert heapq.nlargest(1, [R, 2]) == [3]
assert bisect.bisect([1, 2], R) == 2
assert functools.reduce(operator.add, [R, 1]) == 4
assert R == pytest.approx(3.14)
assert pytest.approx(3.14) == R
assert [R] == pytest.approx([3.14])
with R: assert True
with R as r: assert r
for x in R: assert x == 1; break
else: raise AssertionError
if not R: raise AssertionError
if R != 3: raise AssertionError
while not R: raise AssertionError
if not 3 < R: raise AssertionError
try: assert R > 3
except TypeError: raise AssertionError
assert (lambda r: r > 3)(R)
assert (r := R) and r
match R:
    case 3: pass
    case _: raise AssertionError
match R:
    case [_, *_]: pass
    case {"a": 1}: pass
    case str() | int(): assert R
    case _: raise AssertionError
"""

UNITTEST = """
assertEqual(R, 3)
assertEqual([R], [3])
assertEqual(3, R)
assertTrue(R)
assertIs(R, True)
assertIs(R, 3)
assertIn(3, R)
assertIn(R, [3])
assertGreater(R, 3)
assertGreaterEqual(R, 3)
assertLess(R, 4)
assertLess(3, R)
assertLessEqual(R, 4)
assertAlmostEqual(R, 3.14)
assertAlmostEqual(3.14, R, places=1)
assertAlmostEqual(R, 3.14, delta=10)
assertIsInstance(R, bool)
assertIsInstance(R, float)
assertRegex(R, ".")
assertCountEqual(R, [1])
assertCountEqual([R], [3])
assertListEqual(R, [1])
assertDictEqual(R, {1: 2})
assertSetEqual(R, {1})
assertTupleEqual(R, (1,))
assertSequenceEqual(R, [1])
assertMultiLineEqual(R, "x")
assertTrue(3 in R)
assertTrue(R > 3)
assertTrue(R == 3)
assertTrue(R.startswith("x"))
assertTrue(all(R) and len(R))
assertTrue(len(R) == 3)
assertFalse(not R)
assertFalse(R != 3)
assertNotAlmostEqual(R, 5)
"""
ARRAYS = """
assert np.allclose(R, 3.14)
assert np.isclose(R, 3.14)
assert np.array_equal(R, [1, 2])
assert (R == np.array([1, 2])).all()
assert (np.array([1, 2]) == R).all()
assert (np.array([1, 2]) < R).all()
assert R.size > 0
assert R.sum() > 0
assert np.all(R)
assert np.sum(R) > 0
assert np.mean(R) > 0
assert np.linalg.norm(R - np.ones(2)) < 1
assert np.asarray(R).sum() > 0
np.testing.assert_allclose(R, 3.14)
np.testing.assert_array_equal(R, [1, 2])
np.testing.assert_equal(R, 3)
"""
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


def _passed(code: str, *asked: str, arrays: bool = False) -> list[str]:
    """The statements that are right of expressions."""
    statements = _statements(STATEMENTS) + [f"unittest.TestCase().{line}" for line in _statements(UNITTEST)]
    statements += _statements(ARRAYS) if arrays else []
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
    statements = [re.sub(r"\bR\b", "Solution().f(2)", one) for one in _statements(STATEMENTS)]
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
