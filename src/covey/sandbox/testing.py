"""Test code and the code that it tests, each in a process of its own.

Run as a program in a sandbox, with the descriptor of a socket to the other process: with `tests FD SECONDS` it runs
the test code `tests.py`, within so much CPU time; with `code FD`, the tested `code.py`. In the tests, a name that they
do not define stands for the tested code's: a call goes to the other process and comes back as plain data or as a
handle (see `handles`). So the tested code has nothing of the tests to tamper with, not even in memory.

This module and those that it uses run inside sandboxes, so they import the standard library only.
"""

import ast
import builtins
import contextlib
import importlib.util
import os
import resource
import socket
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from covey.sandbox.handles import is_same
from covey.sandbox.peer import Peer

_LIBRARIES = {"numpy", "pytest", "pandas", "scipy", "sympy", "torch", "hypothesis", "sklearn", "networkx", "matplotlib"}
"""Which are not the tested code, although they are not there."""
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_COMPOUND = ast.For | ast.While | ast.With | ast.Try | ast.If


class Identity(ast.NodeTransformer):
    """Makes `is` of the tests compare objects of the tested code by what they stand for."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        same = ast.Call(ast.Name("__same__", ast.Load()), [node.left, *node.comparators], [])
        return same if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), same)


def test(channel: socket.socket) -> Iterator[str]:
    """Run the tests: top-level asserts, calls and compound statements, and test functions.

    Yields:
        How many there are, and then an outcome for each; also for another statement that fails.
    """
    tree = ast.parse(Path("tests.py").read_text(encoding="utf-8"))
    # Test cases are run one by one.
    tree.body = [n for n in tree.body if not (isinstance(n, ast.Expr | ast.If) and "unittest.main(" in ast.unparse(n))]
    nodes = list(ast.walk(tree))
    called = {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name not in called]
    functions = [name for name in functions if name.startswith("test")]
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and "TestCase" in "".join(map(ast.unparse, n.bases))]
    methods = [(kind.name, n.name) for kind in classes for n in kind.body if isinstance(n, _FUNCTION)]
    cases = [(kind, name) for kind, name in methods if name.startswith("test")]
    counting = [n for n in tree.body if _asserts(n, {n.name for n in tree.body if isinstance(n, _FUNCTION)})]
    if not (counting or functions or cases):
        counting = [n for n in tree.body if isinstance(n.value if isinstance(n, ast.Expr) else n, ast.Call | _COMPOUND)]
    yield str(len(counting) + len(functions) + len(cases))
    peer = Peer(channel)
    theirs = {name for name in peer.ask("dir", [peer.module]) if not name.startswith("__")}
    modules = {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module and not n.level}
    modules |= {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    imported = {name for name in modules if _stand_in(name, theirs, peer)}
    used = {n.id for n in nodes if isinstance(n, ast.Name)}
    own = {name for name in used & theirs if not hasattr(builtins, name)}
    # The tested code replaces one of Python's names only if it is tested.
    borrowed = own if own or imported else used & theirs
    # Tests may leave it to the tested code to import math, say.
    roots = {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    standard = roots & (sys.stdlib_module_names - called)

    class Names(dict[str, Any]):
        """The names of the tests: their own, then those of the tested code."""

        def __missing__(self, name: str) -> Any:
            if name in standard:
                return importlib.import_module(name)
            if name in borrowed:
                return peer.named(name)
            raise KeyError(name)

    names = Names(__name__="__main__", __builtins__=builtins, __same__=is_same)
    for name in theirs & {getattr(n, "attr", getattr(n, "name", getattr(n, "id", ""))) for n in nodes}:
        with contextlib.suppress(Exception):
            peer.named(name)  # which classes the tests name counts from the first result
    tree = ast.fix_missing_locations(Identity().visit(tree))
    for node in tree.body:
        outcome = _outcome(partial(exec, compile(ast.Module([node], []), "tests.py", "exec"), names))
        if node in counting or outcome != "right":
            yield outcome
    for name in functions:
        yield _outcome(names[name])
    for kind, name in cases:
        yield _outcome(partial(_run_case, names, kind, name))


def _asserts(node: ast.stmt, own: set[str]) -> bool:
    """Whether a statement tests something: it asserts, raises, or calls a function of the tests."""
    if isinstance(node, _FUNCTION | ast.ClassDef):
        return False
    found = list(ast.walk(node))
    called = [ast.unparse(n.func) for n in found if isinstance(n, ast.Call) and isinstance(node, ast.Expr | _COMPOUND)]
    return any(isinstance(n, ast.Assert | ast.Raise) for n in found) or any(
        name in own or name.rpartition(".")[2].startswith("assert") for name in called
    )


def _run_case(names: dict[str, Any], kind: str, name: str) -> None:
    case = names[kind](name)
    case.assertIs = lambda one, other, text=None: is_same(one, other) or case.fail(text)
    case.assertIsNot = lambda one, other, text=None: is_same(one, other) and case.fail(text)
    sys.modules["unittest"].TestSuite([case]).debug()


def _stand_in(name: str, theirs: set[str], peer: Peer) -> bool:
    """A module that the tests import and that is not there is the tested code; returns whether it is that."""
    top = name.partition(".")[0]
    if top in sys.modules or top in _LIBRARIES or importlib.util.find_spec(top) is not None:
        return False

    def looked_up(wanted: str) -> Any:
        if wanted not in theirs:
            raise AttributeError(wanted)
        return peer.named(wanted)

    module = types.ModuleType(name)
    module.__getattr__ = looked_up  # type: ignore[method-assign]
    module.__all__ = sorted(name for name in theirs if not name.startswith("_"))  # type: ignore[attr-defined]
    sys.modules[name] = module
    return True


def _outcome(run: Callable[[], Any]) -> str:
    try:
        run()
        return "right"
    except EOFError:
        return "ended"
    except SystemExit as end:
        return "wrong" if end.code else "right"
    except BaseException as error:
        return "wrong" if isinstance(error, AssertionError) else "failed"


def main(role: str, descriptor: int, seconds: int = 0) -> None:
    channel = socket.socket(fileno=descriptor)
    sys.setrecursionlimit(5000)
    if role == "tests":
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for outcome in test(channel):
            print(outcome, file=answers, flush=True)
        os._exit(0)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        exec(compile(Path("code.py").read_text(encoding="utf-8"), "code.py", "exec"), module.__dict__)
    except BaseException as error:  # what it has defined by then may do
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    with contextlib.suppress(EOFError):
        Peer(channel, module).serve()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
