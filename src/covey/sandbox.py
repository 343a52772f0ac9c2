"""Running Python that a model wrote: a fresh process with limits, a private folder and nothing of this process's own.

The limits bound what a program can take, not what it can see: it runs as the same user, with the network and the files
of this machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import BinaryIO, Literal

SECONDS = 5.0
MEMORY_MB = 512
OUTPUT_CHARACTERS = 8192
_FILE_BYTES = 4 << 20
_OPEN_FILES = 64

Status = Literal["finished", "failed", "timed_out", "killed"]


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of a program."""

    status: Status
    """`finished`; `failed`: it ended with an error; `timed_out`; `killed`: by a signal, as a limit sends it."""
    output: str
    """Standard output and errors in their order, with what is too long cut from the middle."""
    detail: str = ""
    """How it ended, where that is not in the output."""


def run_python(
    code: str, *, seconds: float = SECONDS, memory_mb: int = MEMORY_MB, output_characters: int = OUTPUT_CHARACTERS
) -> Execution:
    """Run a program, and show the value of its last line if that is an expression, as an interactive session does.

    Args:
        code: the program.
        seconds: its time, in all and on the processor.
        memory_mb: megabytes of address space.
        output_characters: of its output that are returned.

    Returns:
        How it ended, and its output. Whatever the program does, this neither raises nor takes much longer than
        `seconds`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="covey-python-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as output,
    ):
        limits = (math.ceil(seconds) + 1, memory_mb << 20, _FILE_BYTES, _OPEN_FILES)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-X", "utf8", "-c", _BOOTSTRAP, *map(str, limits)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={"HOME": folder, "TMPDIR": folder, "PATH": os.defpath, "LANG": "C.UTF-8", **_ONE_THREAD},
                start_new_session=True,
            )
        except OSError as error:  # no process or memory left on this machine
            return Execution("killed", "", f"the program could not be started: {error}")
        status: Status
        try:
            process.communicate(code.encode("utf-8", "replace"), timeout=seconds)
        except subprocess.TimeoutExpired:
            status, detail = "timed_out", f"it ran longer than {seconds:g} seconds"
        else:
            status, detail = _ended(process.returncode)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
            process.wait()
        return Execution(status, _read(output, output_characters), detail)


_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""More threads would each take address space."""

_BOOTSTRAP = """
import ast, linecache, resource, sys
def limit(kind, most):
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))
code = sys.stdin.buffer.read().decode()
seconds, memory, size, files = map(int, sys.argv[1:])
sys.argv[1:] = []
sys.stdin = open(0, closefd=False)
limit(resource.RLIMIT_CPU, seconds)
limit(resource.RLIMIT_FSIZE, size)
limit(resource.RLIMIT_NOFILE, files)
limit(resource.RLIMIT_CORE, 0)
limit(resource.RLIMIT_NPROC, 0)  # no process or thread beside this one, unless it runs as root
if sys.platform == "linux":
    limit(resource.RLIMIT_AS, memory)
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
    traceback.print_exception(error, limit=-4)
    sys.exit(1)
"""
"""Sets the limits and runs the program on standard input; its own frames are not shown in a traceback."""


def _ended(code: int) -> tuple[Status, str]:
    if code >= 0:
        return ("failed", f"it ended with exit code {code}") if code else ("finished", "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return "killed", f"it was ended by {name}"


def _read(file: BinaryIO, characters: int) -> str:
    """The beginning and the end of the output."""
    file.seek(0, os.SEEK_END)
    size, half = file.tell(), characters // 2
    file.seek(0)
    if size <= characters:
        return file.read().decode("utf-8", "replace")
    first = file.read(half)
    file.seek(size - half)
    last = file.read(half)
    return "\n".join(
        (first.decode("utf-8", "replace"), f"… {size - 2 * half} bytes left out …", last.decode("utf-8", "replace"))
    )
