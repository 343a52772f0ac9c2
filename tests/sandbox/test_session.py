"""The runner of programs that a model wrote: its limits against programs that break them."""

from __future__ import annotations

import sys
import threading
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
    assert "['session.py'] __main__" in found
    assert "No module named 'planted'" in run_python("import planted").output


def test_the_folder_is_private() -> None:
    code = (
        "import os, tempfile\nopen('file', 'w').write('x')\nprint(os.getcwd() == tempfile.gettempdir(), os.listdir())"
    )
    assert run_python(code).output == "True ['file']\n"
    assert run_python("import os; os.listdir()").output == "[]\n"


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
    found = run_python(code, seconds=1, memory_mb=256)
    assert found.status == status
    assert said in found.output + found.detail


def test_a_flood_of_output_is_cut() -> None:
    found = run_python("print('begin')\nfor _ in range(10**5): print('x' * 99)\nprint('end')", output_characters=1000)
    assert found.output.startswith("begin\nxxx")
    assert "characters left out" in found.output
    assert found.detail == "it was ended after 1024 KiB of output"
    assert len(found.output) < 1100


def test_processes_that_it_starts_end_with_it() -> None:
    """They would keep its output open."""
    code = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        time.sleep(os.setsid() or 600)\n'done'"
    assert run_python(code).output == "'done'\n"


@pytest.mark.slow
def test_a_fork_bomb_ends() -> None:
    found = run_python("import os\nwhile True:\n    os.fork()", seconds=0.5)
    assert found.status in ("failed", "timed_out", "killed")
    assert run_python("print('next')").output == "next\n"


def test_it_may_be_called_from_threads() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda i=i: found.append(run_python(f"print({i})").output)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"{i}\n" for i in range(4)]
