"""Test code and tested code in two processes: the outcomes of asserts, by hand."""

# ruff: noqa: E501  programs

from __future__ import annotations

import pytest

from covey.sandbox import Ended, Limits, run_tests

LIMITS = Limits(seconds=2.0)

HONEST = {
    "numbers": (
        "def f(x): return x + 1",
        "assert f(1) == 2\nassert f(1) == 3\nassert f(2.5) == 3.5",
        "right wrong right",
    ),
    "plain data": (
        "def f(x): return x",
        "from fractions import Fraction\nfrom datetime import datetime\n"
        "for x in (None, True, 2 ** 200, -1.5, 'a\\ud800', b'x', [1, (2,)], {1: {2}}, 1j, Fraction(1, 3), range(3)):\n"
        "    assert f(x) == x and type(f(x)) is type(x)\n"
        "assert f(datetime(2020, 1, 2)) == datetime(2020, 1, 2)\nassert f(float('nan')) != f(float('nan'))",
        "right right right",
    ),
    "changes its arguments": (
        "def f(a, d): a.sort(); d['n'] = len(a)",
        "a, d = [3, 1], {}\nf(a, d)\nassert a == [1, 3]\nassert d == {'n': 2}",
        "right right",
    ),
    "classes": (
        "class Stack:\n    kind = 'lifo'\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n"
        "    def __repr__(self): return f'Stack({self.items})'\n    def __eq__(self, o): return self.items == o.items",
        "s, t = Stack(), Stack()\ns.push(4)\nassert len(s) == 1 and repr(s) == 'Stack([4])'\nassert s != t\nt.push(4)\n"
        "assert s == t\nassert isinstance(s, Stack) and not isinstance(3, Stack)\nassert Stack.kind == 'lifo'\n"
        "assert s.pop() == 4\nassert not s",
        "right " * 7,
    ),
    "exceptions": (
        "class TooSmall(ValueError): pass\ndef f(x):\n    if x < 0: raise TooSmall('small')\n    return 1 / x",
        "try:\n    f(-1)\n    assert False\nexcept TooSmall as error:\n    assert str(error) == 'small'\n"
        "try:\n    f(-1)\nexcept ValueError: pass\ntry:\n    f(0)\nexcept ZeroDivisionError: pass\nf(-1)",
        "right failed",
    ),
    "arguments that it swaps": (
        "def swap(a, b): a[:], b[:] = b[:], a[:]\ndef turn(d, s): d.appendleft(d.pop()); s.discard(1)",
        "from collections import deque\na, b = [1], [2]\nswap(a, b)\nassert (a, b) == ([2], [1])\n"
        "d, s = deque([1, 2]), {1}\nturn(d, s)\nassert d == deque([2, 1]) and s == set()",
        "right right",
    ),
    "arguments of exceptions": (
        "class invalid(Exception): pass\ndef f(x): raise invalid('a', [x], {'b': (x,)})\ndef g(x): return x.decode()",
        "try:\n    f(3)\nexcept invalid as e:\n    assert e.args == ('a', [3], {'b': (3,)})\nelse:\n    assert False\n"
        "try:\n    g(b'\\xff')\nexcept UnicodeDecodeError as e:\n    assert e.start == 0 and 'decode' in str(e)\n"
        "else:\n    assert False",
        "right right",
    ),
    "functions as arguments": (
        "def apply(g, x): return g(x)\ndef by(xs, key): return sorted(xs, key=key)",
        "assert apply(lambda v: v * 2, 4) == 8\nassert by(['bb', 'a'], len) == ['a', 'bb']",
        "right right",
    ),
    "generators": (
        "def count(n):\n    for i in range(n): yield i",
        "assert list(count(3)) == [0, 1, 2]\ng = count(2)\nassert next(g) == 0\nassert sum(count(4)) == 6",
        "right right right",
    ),
    "objects of the tests": (
        "def rev(n):\n    p = None\n    while n: n.next, p, n = p, n, n.next\n    return p",
        "class ListNode:\n    def __init__(self, v, n=None): self.val, self.next = v, n\n"
        "r = rev(ListNode(1, ListNode(2)))\nassert r.val == 2 and r.next.val == 1 and r.next.next is None",
        "right",
    ),
    "test functions": (
        "def add(a, b): return a + b",
        "from solution import add\nimport math\ndef test_a():\n    assert add(1, 2) == 3\ndef test_b():\n    assert add(1, 2) == 4",
        "right wrong",
    ),
    "a check of a candidate": (
        "def inc(x): return x + 1",
        "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(-1) == 0\ncheck(inc)",
        "right",
    ),
    "a name of Python's": ("def sum(a, b): return a * b", "assert sum(2, 3) == 6", "right"),
    "a program that reads its input": ("def f(x): return x\nn = int(input())", "assert f(3) == 3", "right"),
    "operators": (
        "class V:\n    def __init__(self, a): self.a = a\n    def __mul__(self, k): return V(self.a * k)\n    __rmul__ = __mul__\n"
        "    def __eq__(self, o): return self.a == o.a\n    def __iadd__(self, o): self.a += o.a; return self\n"
        "    def __sub__(self, k): return V(self.a - k)",
        "assert 2 * V(3) == V(3) * 2 == V(6)\nv = w = V(1)\nv += V(2)\nassert w == V(3) and v is w\nassert V(3) - 1 == V(2)",
        "right right right",
    ),
    "types": (
        "import enum\nclass E(enum.IntEnum):\n    A = 3\ndef f(t, k): return [x for x in t if not isinstance(x, k)]\n"
        "def g(x): return type(x)\ndef h(): return E.A",
        "assert f((4, 7.5), int) == [7.5]\nassert g(3) is int\nassert h() == 3 and h() - 3 == 0 and h() > 2",
        "right right right",
    ),
    "coroutines": (
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0.001)\n    return x",
        "import asyncio\nassert asyncio.run(f(3)) == 3\nassert asyncio.run(f(3)) == 4",
        "right wrong",
    ),
    "identity": (
        "class S:\n    def __new__(cls): return one\none = object.__new__(S)\ndef f(a): a.append(1); return a",
        "x = []\nassert f(x) is x and x == [1]\nassert S() is S()",
        "right right",
    ),
    "attributes of exceptions": (
        "class E(Exception):\n    def __init__(self, code): super().__init__('m'); self.code = code\ndef f(): raise E(5)",
        "try:\n    f()\nexcept E as e:\n    assert e.code == 5 and str(e) == 'm'\nelse:\n    assert False",
        "right",
    ),
    "unittest": (
        "def f(x): return x",
        "import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.x = 1\n"
        "    def test_a(self): self.assertEqual(f(self.x), 1)\n    def test_b(self): self.assertEqual(f(self.x), 2)\n"
        "if __name__ == '__main__':\n    unittest.main()",
        "right wrong",
    ),
    "what is not a test": (
        "class S(list):\n    push = list.append",
        "import random\nrandom.seed(0)\ns = S()\ns.push(1)\nfor x in (2, 3): s.push(x)\nassert s.pop() == 3\nassert s.pop() == 1",
        "right wrong",
    ),
    "a missing function": ("def g(x): return x", "assert f(3) == 3\nassert g(3) == 3", "failed right"),
}

HOSTILE = {
    "is equal to all": (
        "class A:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n"
        "    def __getattr__(self, n): return lambda *a: True\n    def __bool__(self): return True\ndef f(x): return A()",
        "assert f(1) == 2\nassert [f(1)] == [2]\nassert f(1) in (1, 2)\nassert 2 == f(1)\nassert not f(1) != 2",
    ),
    "a list that is equal to all": (
        "class L(list):\n    def __eq__(self, o): return True\ndef f(x): return L([1])",
        "assert f(1) == [2]\nassert [2] == f(1)",
    ),
    "computes with the expected number": (
        "class A:\n    def __sub__(self, o): return 0.0\n    __rsub__ = __truediv__ = __mod__ = __abs__ = lambda *a: 0.0\n"
        "class B(A):\n    def __sub__(self, o): return self\n    __abs__ = lambda self: 0.0\n    __rsub__ = __sub__\n"
        "class C(float):\n    def __sub__(self, o): return 0.0\ndef f(x): return A()\ndef g(x): return B()\n"
        "def h(x): return C(7)",
        "\n".join(f"assert abs({n}(1) - 2.5) < 1e-6\nassert abs(2.5 - {n}(1)) < 1e-6" for n in "fgh"),
    ),
    "stands for a module": (
        "class math:\n    isclose = lambda *a: True\ndef allclose(*a): return True\ndef f(x): return 7",
        "assert math.isclose(f(1), 2)\nimport numpy as np\nassert np.allclose(f(1), 2)",
    ),
    "replaces all in an imported test": (
        "def f(x): return 7\ndef all(x): return True",
        "from solution import f as g\nassert all(g(i) == i for i in range(3))",
    ),
    "formats a function of the tests": (
        "def f(g, a):\n    form = g._peer.ask('getattr', '{0.__globals__[wanted]}', 'format')\n    return int(form(g))",
        "wanted = 4\nassert f(lambda: 1, 3) == wanted",
    ),
    "a test below __main__": (
        "def f(x): return 7",
        "def test_a():\n    assert f(1) == 1\nif __name__ == '__main__':\n    test_a()",
    ),
    "exits at once": ("import os\nos._exit(0)", "assert f(1) == 2"),
    "exits in a call": ("import os\ndef f(x): os._exit(0)", "assert f(1) == 2"),
    "raises SystemExit": ("def f(x): raise SystemExit(0)", "assert f(1) == 2"),
    "raises KeyboardInterrupt": ("def f(x): raise KeyboardInterrupt", "assert f(1) == 2"),
    "replaces abs": ("def abs(x): return 0\ndef f(x): return 7", "assert abs(f(1) - 2) < 1e-6"),
    "replaces len and all": (
        "len = lambda x: 3\nall = any = lambda x: True\ndef f(x): return x",
        "assert len(f([1])) == 3",
    ),
    "replaces AssertionError": (
        "import builtins\nbuiltins.AssertionError = builtins.SystemExit\nbuiltins.exec = print\ndef f(x): return 1",
        "assert f(1) == 2",
    ),
    "reads the tests": (
        "import gc, os\ndef f(x):\n    wanted = 'DETNAW'[::-1]\n"
        "    found = [o for o in gc.get_objects() if isinstance(o, (str, bytes, dict)) and wanted in str(o)]\n"
        "    return wanted if found or os.path.exists('tests.py') else 0",
        "assert f(1) == 'WANTED'",
    ),
    "reaches into the tests' objects": (
        "def f(g):\n    try: g.__globals__['answer'] = 1\n    except AttributeError: pass\n    g.__code__ = None",
        "answer = 0\nf(lambda: 1)\nassert answer == 1",
    ),
    "writes to its descriptors": (
        "import os\nfor d in range(3, 64):\n    try: os.write(d, b'right\\n' * 5)\n    except OSError: pass\ndef f(x): return 1",
        "assert f(1) == 2",
    ),
    "answers of the wrong form": (
        'import os, sys\ndef f(x):\n    os.write(int(sys.argv[2]), b\'{"value": {"is": "yours", "of": 99}}\\n\')\n'
        "    return 1",
        "assert f(1) == 2",
    ),
    "hangs": ("def f(x):\n    while True: pass", "assert f(1) == 2"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_code(name: str) -> None:
    code, tests, wanted = HONEST[name]
    outcomes, ended = run_tests(code, tests, LIMITS)
    assert outcomes == wanted.split()
    assert ended.ended is Ended.OK


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_passes_no_test(name: str) -> None:
    outcomes, _ = run_tests(*HOSTILE[name], LIMITS)
    assert outcomes
    assert "right" not in outcomes[-1:]
    assert set(outcomes) <= {"wrong", "failed", "ended", "right"}
    if name not in ("reaches into the tests' objects",):
        assert "right" not in outcomes


def test_code_that_is_no_python() -> None:
    outcomes, ended = run_tests("def f(x) return x", "assert f(1) == 1\nassert f(2) == 2", LIMITS)
    assert outcomes == ["failed", "failed"]
    assert b"SyntaxError" in ended.stderr


def test_test_code_that_is_none() -> None:
    assert run_tests("x = 1", "x = = 1", LIMITS)[0] == []
