"""Python as in an interactive session: a program runs, and the value of its last line is shown."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from covey.sandbox.program import Ended, Finished, Limits, Program
from covey.sandbox.run import run

SECONDS = 5.0
MEMORY_MB = 512
OUTPUT_CHARACTERS = 8192

Status = Literal["finished", "failed", "timed_out", "killed"]


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of a program."""

    status: Status
    """`finished`; `failed`: it ended with an error; `timed_out`; `killed`: by a signal, or for too much output."""
    output: str
    """Standard output and errors in their order, with what is too long cut from the middle."""
    detail: str = ""
    """How it ended, where that is not in the output."""


def run_python(
    code: str, *, seconds: float = SECONDS, memory_mb: int = MEMORY_MB, output_characters: int = OUTPUT_CHARACTERS
) -> Execution:
    """Run a program in a sandbox, and show the value of its last line if that is an expression.

    Args:
        memory_mb: MiB of address space.
        output_characters: of its output that are returned.

    Returns:
        How it ended, and its output.
    """
    files = {"session.py": _SESSION.encode(), "code.txt": code.encode("utf-8", "replace")}
    limits = Limits(seconds=seconds, memory_mb=memory_mb)
    (found,) = run(Program(files, "session.py", errors_in_output=True), limits=limits)
    status, detail = _ended(found, limits)
    return Execution(status, _cut(found.stdout.decode("utf-8", "replace"), output_characters), detail)


_SESSION = """
import ast, linecache, os, sys
with open("code.txt", encoding="utf-8") as file:
    code = file.read()
os.remove("code.txt"), os.remove("session.py")
space = {"__name__": "__main__", "__builtins__": __builtins__}
linecache.cache["<code>"] = (len(code), None, code.splitlines(True), "<code>")
try:
    tree = ast.parse(code, "<code>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), space)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), space)
        if value is not None:
            print(repr(value))
    sys.stdout.flush()
except SystemExit:
    raise
except BaseException as error:
    import traceback
    own = not isinstance(error, SyntaxError) and error.__traceback__
    error.__traceback__ = own.tb_next if own else None
    sys.stdout.flush()
    traceback.print_exception(error, limit=-4)
    sys.exit(1)
"""
"""Its own frames are not shown in a traceback."""


def _ended(found: Finished, limits: Limits) -> tuple[Status, str]:
    if found.ended is Ended.TIMED_OUT:
        return "timed_out", f"it ran longer than {limits.seconds:g} seconds"
    if found.ended is Ended.TOO_MUCH_OUTPUT:
        return "killed", f"it was ended after {limits.output_kb} KiB of output"
    if found.status >= 0:
        return ("failed", f"it ended with exit code {found.status}") if found.status else ("finished", "")
    try:
        name = signal.Signals(-found.status).name
    except ValueError:
        name = f"signal {-found.status}"
    return "killed", f"it was ended by {name}"


def _cut(text: str, characters: int) -> str:
    """The beginning and the end."""
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
