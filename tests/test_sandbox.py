"""The runner of programs that a model wrote: its limits against programs that break them."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from covey.sandbox import Execution, run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")


def test_output_and_errors_keep_their_order() -> None:
    found = run_python("import sys\nprint(1, flush=True)\nprint(2, file=sys.stderr, flush=True)\nprint(3)")
    assert found == Execution("finished", "1\n2\n3\n")


def test_the_value_of_the_last_line_is_shown() -> None:
    assert run_python("x = 20\nx + 1").output == "21\n"
    assert run_python("None").output == ""
    assert run_python("x = 1").output == ""


def test_nothing_of_this_process_is_inherited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COVEY_SECRET", "hidden")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "planted.py").write_text("")
    monkeypatch.chdir(tmp_path)
    found = run_python("import os, sys\nprint(sorted(os.environ), os.getcwd(), sys.path, sys.argv, __name__)").output
    assert "COVEY_SECRET" not in found
    assert str(tmp_path) not in found
    assert "['-c'] __main__" in found
    assert "No module named 'planted'" in run_python("import planted").output


def test_the_folder_is_private_and_goes() -> None:
    code = "import os, tempfile\nopen('file', 'w').write('x')\nprint(os.getcwd(), tempfile.gettempdir(), os.listdir())"
    folder, temporary, listed = run_python(code).output.split(" ", 2)
    assert folder == temporary
    assert listed.strip() == "['file']"
    assert Path(folder).parent == Path(tempfile.gettempdir())
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("while True: pass", "timed_out", "longer than 1 seconds"),
        ("import time; time.sleep(60)", "timed_out", "longer than 1 seconds"),
        ("import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\n"
         "while True: pass", "timed_out", "longer"),
        ("x = 'a' * 10**10", "failed", "MemoryError"),
        ("x = [0]\nwhile True: x += x", "failed", "MemoryError"),
        ("open('f', 'w').write('x' * 10**8)", "failed", "File too large"),
        ("f = [open('/dev/null') for _ in range(1000)]", "failed", "Too many open files"),
        ("def f(): return f()\nf()", "failed", "RecursionError"),
        ("input()", "failed", "EOFError"),
        ("raise SystemExit(4)", "failed", "exit code 4"),
        ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
        ("import os; os.kill(0, 9)", "killed", "SIGKILL"),
        ("import os; os.kill(os.getpid(), 11)", "killed", "SIGSEGV"),
        ("def", "failed", "SyntaxError"),
        ("\x00", "failed", "null bytes"),
        ("\ud800", "failed", "Error"),
        ("print('\\ud800')", "failed", "UnicodeEncodeError"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_AS, (10**10, 10**10))", "failed", "Error"),
    ],
)  # fmt: skip
def test_a_program_that_breaks_a_limit(code: str, status: str, said: str) -> None:
    if os.getuid() == 0 and "RLIMIT_AS" in code:
        pytest.skip("root may raise its limits")
    found = run_python(code, seconds=1, memory_mb=256)
    assert found.status == status
    assert said in found.output + found.detail


def test_a_flood_of_output_is_cut() -> None:
    found = run_python("print('begin')\nfor _ in range(10**5): print('x' * 99)\nprint('end')", output_characters=1000)
    assert found.output.startswith("begin\nxxx")
    assert "bytes left out" in found.output
    assert len(found.output) < 1100


def test_processes_that_it_starts_end_with_it() -> None:
    code = """
import os, time
for _ in range(20):
    try:
        child = os.fork()
    except OSError:
        break  # refused, unless it runs as root
    if child == 0:
        time.sleep(600)
    print(child, flush=True)
"""
    children = [int(text) for text in run_python(code).output.split()]
    assert len(children) == (20 if os.getuid() == 0 else 0)
    end = time.monotonic() + 60  # the signal has been sent; a busy machine delivers it later
    while any(map(is_alive, children)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(is_alive, children))


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_fork_bomb_ends() -> None:
    found = run_python("import os\nwhile True:\n    os.fork()", seconds=0.5)
    assert found.status in ("failed", "timed_out", "killed")  # refused, unless it runs as root
    assert run_python("print('next')").output == "next\n"


def test_it_may_be_called_from_threads() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda i=i: found.append(run_python(f"print({i})").output)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"{i}\n" for i in range(4)]
