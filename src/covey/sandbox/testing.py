"""Test code and the code that it tests, each in a process of its own.

Run as a program in a sandbox, with the descriptor of a socket to the other process: with `tests FD` it runs the test
code `tests.py`, with `code FD` the tested `code.py`. In the tests, a name that they do not define stands for the tested
code's: a call goes to the other process and comes back as plain data, or as a handle on an object there. So the tested
code has nothing of the tests to tamper with, not even in memory. What it returns is equal to plain data only if it is
plain data itself, or of a type derived from the data's, by that type's own comparison.

Imports the standard library and `peer` only.
"""

import ast
import builtins
import importlib.util
import os
import socket
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from covey.sandbox.peer import Peer


class Names(dict[str, Any]):
    """The names of the tests: their own, then those of the tested code."""

    def __init__(self, peer: Peer, borrowed: set[str]) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self._peer, self._borrowed = peer, borrowed

    def __missing__(self, name: str) -> Any:
        if name not in self._borrowed:
            raise KeyError(name)
        return self._peer.ask("name", name)


def test(channel: socket.socket) -> Iterator[str]:
    """Run the tests: top-level asserts, calls and compound statements, and test functions.

    Yields:
        How many there are, and then an outcome for each; also for another statement that fails.
    """
    tree = ast.parse(Path("tests.py").read_text(encoding="utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    calls = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    functions = [name for name in functions if name not in calls]
    yield str(sum(map(_counts, tree.body)) + len(functions))
    peer = Peer(channel, {}, guarded=True)
    try:
        theirs = set(peer.ask("names"))
    except (EOFError, TypeError):
        return
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    own = {name for name in used & theirs if not hasattr(builtins, name)}
    names = Names(peer, own or used & theirs)  # the tested code replaces one of Python's names only if it is tested
    for module in {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module and not n.level}:
        _stand_in(str(module), theirs, peer)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                _stand_in(alias.name, theirs, peer)
    for node in tree.body:
        outcome = _outcome(partial(exec, compile(ast.Module([node], []), "tests.py", "exec"), names))
        if _counts(node) or outcome != "right":
            yield outcome
    for name in functions:
        yield _outcome(names[name])


def _counts(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    return isinstance(node, ast.Assert | ast.For | ast.While | ast.With | ast.Try | ast.If)


def _stand_in(name: str, theirs: set[str], peer: Peer) -> None:
    """A module that the tests import and that is not there is the tested code."""
    top = name.partition(".")[0]
    try:
        found = top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        found = False
    if found:
        return

    def looked_up(wanted: str) -> Any:
        if wanted not in theirs:
            raise AttributeError(wanted)
        return peer.ask("name", wanted)

    module = types.ModuleType(name)
    module.__getattr__ = looked_up  # type: ignore[method-assign]
    module.__all__ = sorted(name for name in theirs if not name.startswith("_"))  # type: ignore[attr-defined]
    sys.modules[name] = module


def _outcome(run: Callable[[], Any]) -> str:
    try:
        run()
    except EOFError:
        return "ended"
    except SystemExit as end:
        return "wrong" if end.code else "right"
    except AssertionError:
        return "wrong"
    except BaseException:
        return "failed"
    return "right"


def main(role: str, descriptor: int) -> None:
    channel = socket.socket(fileno=descriptor)
    sys.setrecursionlimit(5000)
    if role == "tests":
        answers = os.fdopen(os.dup(1), "w")
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        for outcome in test(channel):
            answers.write(f"{outcome}\n")
            answers.flush()
        os._exit(0)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        exec(compile(Path("code.py").read_text(encoding="utf-8"), "code.py", "exec"), module.__dict__)
    except BaseException as error:  # what it has defined by then may do
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    Peer(channel, module.__dict__, guarded=False).serve()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
